package mps

import "testing"

// A lease is placed where clients can join now or after a wait of seconds, and nowhere else.
func TestAdmits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state *State
		want  bool
	}{
		"none":                  {nil, false},
		"it greets":             {&State{Phase: Running}, true},
		"a greeting is missed":  {&State{Phase: Running, MissedGreetings: 1, Reason: "no greeting"}, true},
		"three are missed":      {&State{Phase: Unresponsive, MissedGreetings: 3, Reason: "no greeting"}, false},
		"it has just begun":     {&State{Phase: Starting, MissedGreetings: 1, Reason: "no daemon"}, false},
		"its limits are others": {&State{Phase: Running, Drift: true, Reason: "the thread percentage is 100, it should be 30"}, false},
		"it has ended":          {&State{Phase: Stopped, Reason: "its unit does not run"}, false},
	} {
		if got := test.state.Admits(); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
