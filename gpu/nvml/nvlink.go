//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// NVLinks implements gpu.Driver. All link numbers are read: the numbers of a GPU may have gaps, and libraries return
// different codes for a link that does not exist.
func (d *Driver) NVLinks(ctx context.Context, id gpu.UUID) (gpu.NVLinks, error) {
	const op = "read the NVLinks"
	if !d.symbols.has(nvLinks) {
		return gpu.NVLinks{}, refuse(op, id, gpu.ErrMissing)
	}
	v, err := d.lockDevice(ctx, op, id)
	if err != nil {
		return gpu.NVLinks{}, err
	}
	defer v.mu.Unlock()
	var out gpu.NVLinks
	for link := range nvml.NVLINK_MAX_LINKS {
		if err := ctx.Err(); err != nil {
			return gpu.NVLinks{}, refuse(op, id, fmt.Errorf("%w: %w", gpu.ErrTimeout, err))
		}
		if ret := addLink(&out, v.handle, link); ret != nvml.SUCCESS {
			return gpu.NVLinks{}, v.failed(op, ret)
		}
	}
	slices.Sort(out.Peers)
	return out, nil
}

// addLink adds the peer of one link, and nothing when the link does not exist.
func addLink(to *gpu.NVLinks, h nvml.Device, link int) nvml.Return {
	noLink := func(ret nvml.Return) bool { return absent(ret) || ret == nvml.ERROR_INVALID_ARGUMENT }
	state, ret := h.GetNvLinkState(link)
	switch {
	case noLink(ret):
		return nvml.SUCCESS
	case ret != nvml.SUCCESS:
		return ret
	case state != nvml.FEATURE_ENABLED:
		to.Down++
		return nvml.SUCCESS
	}
	kind, ret := h.GetNvLinkRemoteDeviceType(link)
	if noLink(ret) {
		kind, ret = nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.SUCCESS
	}
	switch {
	case ret != nvml.SUCCESS:
		return ret
	case kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		to.Switches++
		return nvml.SUCCESS
	case kind != nvml.NVLINK_DEVICE_TYPE_GPU:
		to.Unknown++
		return nvml.SUCCESS
	}
	pci, ret := h.GetNvLinkRemotePciInfo(link)
	if noLink(ret) {
		to.Unknown++
		return nvml.SUCCESS
	}
	if peer := pciAddress(pci); ret == nvml.SUCCESS && !slices.Contains(to.Peers, peer) {
		to.Peers = append(to.Peers, peer)
	}
	return ret
}
