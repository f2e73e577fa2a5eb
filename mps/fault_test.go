package mps

import "testing"

// A tenant chooses what its processes are called, and not what the server logs.
func TestFaultLine(t *testing.T) {
	for line, want := range map[string]int{
		"[2026-01-02 03:04:05.678 Server  17] Client {PID: 4267, Context ID: 0} encountered a fatal GPU error.":      4267,
		"[2026-01-02 03:04:05.678 Server INFO  17] Client {PID: 1, Context ID: 3} encountered a fatal GPU error.":    1,
		"[2026-01-02 03:04:05.678 Server  17] Client {PID: 4267, Context ID: 0} connected":                           0,
		"[2026-01-02 03:04:05.678 Server  17] Client process 4267 encountered a fatal GPU error.":                    4267,
		"[2026-01-02 03:04:05.678 Server  17] Client process 4267 disconnected":                                      0,
		"[2026-01-02 03:04:05.678 Server  17] Client {PID: , Context ID: 0} encountered a fatal GPU error.":          0,
		"[2026-01-02 03:04:05.678 Server  17] Client {PID: 99999999999999999999, Context ID: 0} encountered a fatal": 0,
	} {
		if _, pid := FaultIn([]string{"before", line, "after"}); pid != want {
			t.Errorf("%q names %d, want %d", line, pid, want)
		}
	}
}
