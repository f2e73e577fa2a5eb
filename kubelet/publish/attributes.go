package publish

import (
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpushare/gpushare/api"
)

// maxText is what the API allows of an attribute.
const maxText = resourceapi.DeviceAttributeMaxValueLength

func text(s string) resourceapi.DeviceAttribute {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return resourceapi.DeviceAttribute{StringValue: &s}
}

func number(n int) resourceapi.DeviceAttribute {
	v := int64(n)
	return resourceapi.DeviceAttribute{IntValue: &v}
}

func amount(bytes uint64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(bytes), resource.BinarySI)}
}

func count(n uint32) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

// device has what devices of one GPU have in common. The names are those of NVIDIA's driver for whole GPUs and MIG, so that selectors
// that sites have work with another domain. What gpushared does not say, as the brand, is not there.
func (n *Node) device(g *api.GPUStatus, kind string) resourceapi.Device {
	a := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type":        text(kind),
		"productName": text(g.Model),
	}
	if g.Index >= 0 { // A GPU that the driver does not find has none.
		a["index"] = number(g.Index)
	}
	if v := semantic(n.Status.Node.Driver); v != "" {
		a["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: &v}
	}
	if id := busID(g.PCI); id != "" {
		a[deviceattribute.StandardDeviceAttributePCIBusID] = text(id)
	}
	host := n.Host[g.UUID]
	if host.PCIeRoot != "" {
		a[deviceattribute.StandardDeviceAttributePCIeRoot] = text(host.PCIeRoot)
	}
	if host.NUMANode != nil {
		a[deviceattribute.StandardDeviceAttributeNUMANode] = number(*host.NUMANode)
	}
	return resourceapi.Device{Attributes: a, Taints: n.taints(g, nil)}
}

// semantic is a version of the driver by the rules of semantic versions: three numbers without leading zeros. Empty: it is none.
func semantic(version string) string {
	parts := strings.Split(version, ".")
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	for i, p := range parts[:3] {
		number, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return ""
		}
		parts[i] = strconv.FormatUint(number, 10)
	}
	return strings.Join(parts[:3], ".")
}

// busID is a PCI address as Linux writes it: the domain of NVML has eight digits. Empty: it is none.
func busID(pci string) string {
	domain, rest, ok := strings.Cut(strings.ToLower(pci), ":")
	n, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil || n > 0xffff {
		return ""
	}
	s := strconv.FormatUint(n, 16)
	return strings.Repeat("0", 4-len(s)) + s + ":" + rest
}

// BusID is the PCI address of a GPU as Linux writes it; empty: it is not known.
func BusID(g *api.GPUStatus) string { return busID(g.PCI) }
