package mps

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// The limits of a control daemon are its defaults, which a server takes over when it starts, and those of each server, which its
// next clients get. A client may ask for less. Clients that run keep what they got.

// Check refuses settings that the program would misread or ignore.
func (s Settings) Check() error {
	if s.GPU == "" || len(shortID(s.GPU)) < 8 {
		return errors.New("not a UUID")
	}
	if s.Device().IsInstance() && !strings.HasPrefix(string(s.MIG), "MIG-") {
		return errors.New("it has no MIG device")
	}
	if err := checkThreads(s.Threads); err != nil {
		return err
	}
	if s.Memory > 0 {
		if _, err := FormatMemory(s.Memory, 0); err != nil {
			return err
		}
	}
	return nil
}

// checkThreads refuses what is no percentage of threads: the program ignores it.
func checkThreads(percent float64) error {
	if percent < 0 || percent > 100 || percent != percent {
		return fmt.Errorf("a thread percentage of %s is not above 0 and at most 100", percentText(percent))
	}
	return nil
}

// Values are the limits as the program reads them. The memory limit 0 removes one in every version.
func (s Settings) Values() (threads, memory string, err error) {
	threads, memory = percentText(s.percentage()), "0"
	if s.Memory > 0 {
		memory, err = FormatMemory(s.Memory, 0)
	}
	return threads, memory, err
}

// percentage is the default thread percentage, 100 without a limit.
func (s Settings) percentage() float64 {
	if s.Threads == 0 {
		return 100
	}
	return s.Threads
}

// maxRounding is by how much a percentage that reads back may differ: the program prints one decimal.
const maxRounding = 0.06

// maxServerRounding is the same for a server, which may round down to what the GPU can divide.
const maxServerRounding = 1

// Drift describes how the active defaults differ from the settings; empty: they do not.
func (o Overview) Drift(set Settings) string {
	switch {
	case math.Abs(o.Threads-set.percentage()) > maxRounding:
		return fmt.Sprintf("its default thread percentage is %s, it should be %s", percentText(o.Threads), percentText(set.percentage()))
	case o.Memory != readBack(set.Memory):
		return fmt.Sprintf("its default memory limit reads back as %q, it should be %q", o.Memory, readBack(set.Memory))
	}
	return ""
}

// Drift describes how the limits of a server differ from the settings; empty: they do not, or it did not report them.
func (r ServerReading) Drift(pid int, set Settings) string {
	switch {
	case !r.Limited:
	case math.Abs(r.Threads-set.percentage()) > maxServerRounding:
		return fmt.Sprintf(
			"the thread percentage of server %d is %s, it should be %s", pid, percentText(r.Threads), percentText(set.percentage()),
		)
	case r.Memory != readBack(set.Memory):
		return fmt.Sprintf("the memory limit of server %d reads back as %q, it should be %q", pid, r.Memory, readBack(set.Memory))
	}
	return ""
}

// Refusal identifies a difference that remains after the limits of a server were set. It is tried again when the server has lost
// its last client.
func (r ServerReading) Refusal(drift string) string {
	return fmt.Sprintf("%s, idle: %t", drift, len(r.Clients) == 0)
}
