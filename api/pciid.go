package api

import (
	"fmt"
	"strconv"
	"strings"
)

// PCIID is a kind of board: the PCI ids of the device and of its subsystem, with the vendor in the lower half, as the driver
// reports them: 0x20B010DE. Subsystem 0 is any.
type PCIID struct{ Device, Subsystem uint32 }

// String returns the form of lspci: "10de:20b0", or with the subsystem "10de:20b0:10de:134f".
func (p PCIID) String() string {
	s := fmt.Sprintf("%04x:%04x", p.Device&0xffff, p.Device>>16)
	if p.Subsystem != 0 {
		s += fmt.Sprintf(":%04x:%04x", p.Subsystem&0xffff, p.Subsystem>>16)
	}
	return s
}

// ParsePCIID reads "10de:20b0" and "10de:20b0:10de:134f", and the driver's form of one id, "0x20B010DE".
func ParsePCIID(s string) (PCIID, bool) {
	s = strings.ToLower(s)
	if digits, ok := strings.CutPrefix(s, "0x"); ok {
		id, err := strconv.ParseUint(digits, 16, 32)
		return PCIID{Device: uint32(id)}, err == nil && len(digits) == 8 && id != 0
	}
	parts := strings.Split(s, ":")
	if len(parts) != 2 && len(parts) != 4 {
		return PCIID{}, false
	}
	var ids [2]uint32
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 16)
		if err != nil || len(part) != 4 {
			return PCIID{}, false
		}
		ids[i/2] |= uint32(n) << (16 * (i % 2))
	}
	return PCIID{ids[0], ids[1]}, ids[0] != 0 && (len(parts) == 2 || ids[1] != 0)
}
