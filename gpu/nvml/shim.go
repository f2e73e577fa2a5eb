//go:build cgo

package nvml

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/gpushare/gpu"
)

// library is the vendor's library, opened in addition to go-nvml's own handle, to look up symbols before they are called.
type library struct {
	handle unsafe.Pointer
	path   string
}

// openLibrary opens the library. The error is the dynamic linker's.
func openLibrary(name string) (library, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var text [1024]C.char
	h := C.gpushare_open(cname, &text[0], C.size_t(len(text)))
	if h == nil {
		return library{}, errors.New(C.GoString(&text[0]))
	}
	C.gpushare_path(h, &text[0], C.size_t(len(text)))
	path := C.GoString(&text[0])
	if path == "" {
		path = name
	}
	return library{handle: h, path: path}, nil
}

// symbol looks name up; nil when the library lacks it.
func (l library) symbol(name string) unsafe.Pointer {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	return C.gpushare_symbol(l.handle, cname)
}

// rawHandle returns the vendor's handle, which is the only field of go-nvml's device. nil when go-nvml changes that.
func rawHandle(h nvml.Device) unsafe.Pointer {
	v := reflect.ValueOf(h)
	if v.Kind() != reflect.Struct || v.NumField() != 1 || v.Field(0).Kind() != reflect.Pointer {
		return nil
	}
	return v.Field(0).UnsafePointer()
}

// processRow is one row of a process list. Its size is 16 bytes without the instances (v1), 24 with them (v2 and v3), and
// 32 in the first releases of the 535 branch.
type processRow struct {
	pid    uint32
	memory uint64
	gi, ci uint32
}

// The row sizes of the process lists.
const (
	rowSizeV1  = 16
	rowSizeV2  = 24
	rowSize535 = 32
)

// noInstance is the driver's id for "no instance".
const noInstance = 0xFFFFFFFF

// initialProcesses is the buffer size of the first call, in rows. It is large enough for nearly every GPU; each call
// takes milliseconds under a lock of the driver.
const initialProcesses = 128

// listProcesses calls one of the process lists by pointer.
func listProcesses(fn, device unsafe.Pointer, rowSize int) ([]processRow, nvml.Return) {
	count := C.uint32_t(initialProcesses)
	for range 6 {
		capacity := count
		// The buffer has space for the widest rows: the driver would overrun a smaller one.
		buf := make([]byte, int(capacity)*rowSize535)
		ret := nvml.Return(C.gpushare_processes(fn, device, &count, unsafe.Pointer(&buf[0])))
		if ret == nvml.ERROR_INSUFFICIENT_SIZE {
			count = max(count, capacity) + initialProcesses // processes may start between two calls
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		return parseProcesses(buf, int(min(count, capacity)), rowSize), ret
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}

// parseProcesses reads n rows.
func parseProcesses(buf []byte, n, rowSize int) []processRow {
	rows := make([]processRow, 0, n)
	for i := range n {
		b := buf[i*rowSize : (i+1)*rowSize]
		r := processRow{
			pid:    binary.NativeEndian.Uint32(b),
			memory: binary.NativeEndian.Uint64(b[8:]),
			gi:     noInstance,
			ci:     noInstance,
		}
		if rowSize >= rowSizeV2 {
			r.gi = binary.NativeEndian.Uint32(b[16:])
			r.ci = binary.NativeEndian.Uint32(b[20:])
		}
		rows = append(rows, r)
	}
	return rows
}

// initialSamples is the buffer size of the first call: the driver keeps 72 samples.
const initialSamples = 128

// listSamples calls one of the two functions for the utilisation by process. It is not an error if there are no samples.
func listSamples(fn, device unsafe.Pointer, old bool, since uint64) ([]gpu.UtilSample, nvml.Return) {
	count := C.uint32_t(initialSamples)
	for range 6 {
		capacity := count
		rows := make([]C.gpushare_sample, capacity)
		var code C.int
		if old {
			code = C.gpushare_samples_old(fn, device, C.uint64_t(since), &count, &rows[0])
		} else {
			code = C.gpushare_samples(fn, device, C.uint64_t(since), &count, &rows[0])
		}
		switch ret := nvml.Return(code); ret {
		case nvml.SUCCESS:
			out := make([]gpu.UtilSample, 0, min(count, capacity))
			for _, r := range rows[:min(count, capacity)] {
				out = append(out, gpu.UtilSample{PID: int(r.pid), Time: uint64(r.time), SM: int(r.sm), Mem: int(r.mem)})
			}
			return out, ret
		case nvml.ERROR_NOT_FOUND:
			return nil, nvml.SUCCESS
		case nvml.ERROR_INSUFFICIENT_SIZE:
			count = max(count, capacity) + initialSamples
		default:
			return nil, ret
		}
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}
