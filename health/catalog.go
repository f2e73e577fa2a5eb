package health

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// Class is what follows from an XID.
type Class string

// The classes of XIDs.
const (
	// Program: a program made an error. Its contexts end, and the GPU is in order.
	Program Class = "program"
	// Contained: memory failed, and only the processes that used it were ended. The driver keeps that memory out of use.
	Contained Class = "contained"
	// Notice: nothing follows, or another XID says what does.
	Notice Class = "notice"
	// Rows: the next reset of the GPU replaces rows of memory.
	Rows Class = "rows"
	// Read: the XID alone does not say how serious it is. The recovery action that the driver reports does.
	Read Class = "read"
	// Reset: the GPU is not reliable before a reset.
	Reset Class = "reset"
	// Lost: the GPU cannot be reached before the node is booted.
	Lost Class = "lost"
)

// Closes reports whether a GPU takes no new lease after an XID of this class, unless the spec says otherwise.
func (c Class) Closes() bool { return c == Reset || c == Lost }

// XID is one kind of error that the driver reports.
type XID struct {
	Number  uint64
	Class   Class
	Meaning string
}

// The numbers of XIDs that readings say too: a policy for the XID holds for the reading.
const (
	RowsPending     = 63  // rows wait for a reset
	RowsFailed      = 64  // a row could not be replaced
	RecoveryChanged = 154 // the recovery action changed
)

// catalog has the XIDs of Ampere and newer boards. Sources:
//   - "catalog": NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), column
//     "Resolution Bucket (Immediate Action)".
//   - "messages": NVIDIA, "XID Errors", section "Common XID Errors", for what a number says of the program.
//   - "remapping": NVIDIA, "GPU Memory Error Management", for 48, 63, 64, 94 and 95.
var catalog = map[uint64]XID{}

func init() {
	add := func(c Class, meaning string, numbers ...uint64) {
		for _, n := range numbers {
			catalog[n] = XID{Number: n, Class: c, Meaning: meaning}
		}
	}
	// catalog: restart the application.
	add(Program, "a program sent commands that the GPU cannot read", 11, 25, 32, 80)
	add(Program, "an instruction of a program failed on the GPU", 13)
	add(Program, "a program used an address of GPU memory that it does not have", 31)
	add(Program, "work of a program did not end in time", 8)
	add(Program, "a program used an engine of the GPU wrongly", 69)
	add(Program, "a copy of a program failed", 39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135)
	add(
		Program, "video or image work of a program failed", 60, 68, 82, 83, 84, 86, 88, 89, 96, 97, 98, 99, 100, 101, 102, 103, 104,
		105, 139,
	)
	// messages: a fault of software, after which the program ends and the GPU is in order. catalog: ignore.
	add(Program, "a program ended because of a fault of its own on the GPU", 43)
	// catalog and remapping: restart the application; the reset that replaces the row can wait.
	add(Contained, "GPU memory failed, and only the processes that used it were ended", 94)
	// catalog: ignore.
	add(Notice, "firmware of the driver reported an error without consequence", 37, 38, 44, 66, 67)
	add(Notice, "many errors of GPU memory were corrected", 92)
	add(Notice, "the memory of the board's settings was written often", 93)
	add(Notice, "a test message", 106, 107)
	add(Notice, "an error on the link to the CPU was corrected", 121)
	add(Notice, "an access over NVLink was denied", 137)
	add(Notice, "a fast path of CUDA was not used", 141)
	add(Notice, "an engine of the GPU reported an error without consequence", 152, 153)
	add(Notice, "a failing part could not be taken out of use", 157)
	add(Notice, "a failing channel was taken out of use", 160)
	add(Notice, "a failing channel could not be taken out of use", 161)
	// catalog: with another XID follow that one; messages: the driver cleans up after it.
	add(Notice, "contexts were ended after another error", 45)
	// catalog: software or cables, not the GPU.
	add(Notice, "a virtual GPU could not start", 78)
	add(Notice, "an encoder of the GPU failed", 142)
	add(Notice, "the keys of a confidential machine were not renewed", 151)
	add(Notice, "an error in memory of the CPU", 159)
	add(Notice, "the power smoothing of the board reported a change", 162, 163, 164, 165)
	// catalog and remapping: activated by a reset, which can wait for the next idle time.
	add(Rows, "a row of GPU memory failed, and the next reset of the GPU replaces it", RowsPending)
	// catalog: the severity is in the text of the message or in the recovery action, which the driver reports since R570.
	add(Read, "NVLink reported an error, which may be serious", 144, 145, 146, 147, 148, 149, 150)
	add(Read, "the driver changed what it says that the GPU needs", RecoveryChanged)
	// catalog: reset the GPU; for 48 and 74 a procedure that begins with it.
	add(Reset, "work did not end, and could not be stopped", 46, 109, 158)
	add(Reset, "GPU memory failed, and which processes used it is not known", 95)
	add(Reset, "GPU memory has an error that was not corrected", 48, 140, 171, 172)
	add(Reset, "a failing row of GPU memory could not be replaced", RowsFailed)
	add(Reset, "a controller inside the GPU stopped", 62, 169)
	add(Reset, "the GPU reported an error of its security", 110, 166, 170)
	add(Reset, "NVLink failed", 74, 136, 155)
	add(Reset, "the firmware of the GPU does not answer", 119)
	add(Reset, "the firmware of the GPU failed", 120)
	add(Reset, "the GPU could not be initialized", 143)
	add(Reset, "a failing part is taken out of use by a reset", 156)
	add(Reset, "the GPU has less memory than before, because of errors", 168)
	// catalog: check the cables. The GPU runs without the power that it needs.
	add(Reset, "a power cable is missing", 54)
	// catalog: boot the machine.
	add(Lost, "the GPU is lost: it does not answer on the PCI bus", 79)
	add(Lost, "the PCI bus did not answer in time", 167)
}

// Of describes an XID.
func Of(number uint64) XID {
	if x, ok := catalog[number]; ok {
		return x
	}
	return XID{Number: number, Class: Notice, Meaning: "an error that gpushare does not know"}
}

// String is "XID 31 (a program used …)".
func (x XID) String() string { return fmt.Sprintf("XID %d (%s)", x.Number, x.Meaning) }

// Helps is what an administrator does about it on a GPU, whose name is as commands take it; empty where nothing has to be done.
func (c Class) Helps(name string) string {
	switch c {
	case Rows:
		return "reset the GPU: " + gpu.ResetCommands(name)
	case Reset:
		return "reset the GPU: " + gpu.ResetCommands(name)
	case Lost:
		return "boot the node; if it happens again, check the board and its slot"
	case Program, Contained, Notice, Read:
	}
	return ""
}
