package gpusim

import (
	"crypto/sha1"
	"fmt"
	"math/bits"

	"github.com/gpushare/gpushare/gpu"
)

// none is the driver's id for "no instance".
const none = 0xFFFFFFFF

// instanceID returns the id of a GPU instance at a placement: the whole grid is 0, its halves are 1 and 2, its quarters 3
// to 6, its eighths 7 to 14. It depends on the placement only.
func instanceID(grid uint32, p gpu.Placement) uint32 {
	parts := grid / p.Size
	if parts == 0 {
		parts = 1
	}
	// A grid of 12 is divided into 1, 2 or 4 parts; other sizes count as the next larger part.
	parts = 1 << (bits.Len32(parts) - 1)
	return parts - 1 + p.Start/p.Size
}

// gpuUUID derives the UUID of a GPU from the node's seed and the index.
func gpuUUID(seed string, index int) gpu.UUID {
	return gpu.UUID("GPU-" + uuid5(fmt.Sprintf("gpushare virtual gpu %s %d", seed, index)))
}

// migUUID derives the UUID of a MIG device from GPU, GPU-instance id and first compute slice. It does not depend on the
// profile.
func migUUID(parent gpu.UUID, gi, start uint32) gpu.UUID {
	return gpu.UUID("MIG-" + uuid5(fmt.Sprintf("gpushare virtual mig %s %d %d", parent, gi, start)))
}

// uuid5 formats the first 16 bytes of a SHA-1 as a UUID of version 5.
func uuid5(name string) string {
	h := sha1.Sum([]byte(name))
	h[6] = h[6]&0x0f | 0x50
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// The minors of the two capabilities of the node.
const (
	CapConfig  = 1
	CapMonitor = 2
)

// CapGI returns the capability minor of a GPU instance: the driver reserves 15 instances of 9 minors for each of 32 GPUs,
// after the two of the node.
func CapGI(minor int, gi uint32) int { return 3 + 135*minor + 9*int(gi) }

// CapCI returns the capability minor of a compute instance.
func CapCI(minor int, gi, ci uint32) int { return CapGI(minor, gi) + 1 + int(ci) }

// Handle refers to an object by kind, position and generation. The generation makes handles of removed objects invalid.
// In C it is a pointer.
type Handle uint64

type kind uint8

const (
	kindGPU kind = iota + 1
	kindMIG
	kindGI
	kindCI
	kindEvents
)

// makeHandle packs kind in bits 60-62, generation in 24-55, GPU in 16-23, GPU instance in 8-15, compute instance in 0-7.
func makeHandle(k kind, generation uint32, index int, gi, ci uint32) Handle {
	return Handle(uint64(k)<<60 | uint64(generation)<<24 | uint64(index&0xff)<<16 | uint64(gi&0xff)<<8 | uint64(ci&0xff))
}

func (h Handle) kind() kind         { return kind(h >> 60) }
func (h Handle) generation() uint32 { return uint32(h >> 24) }
func (h Handle) index() int         { return int(h >> 16 & 0xff) }
func (h Handle) gi() uint32         { return uint32(h >> 8 & 0xff) }
func (h Handle) ci() uint32         { return uint32(h & 0xff) }
