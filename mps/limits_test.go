package mps

import "testing"

func TestSettingsAsTheProgramReadsThem(t *testing.T) {
	for _, test := range []struct {
		set             Settings
		threads, memory string
	}{
		{Settings{}, "100", "0"},
		{Settings{Threads: 33.33, Memory: 1500 << 20}, "33.33", "1500M"},
		{Settings{Memory: 1}, "100", ""},
	} {
		threads, memory, err := test.set.Values()
		if threads != test.threads || memory != test.memory || (err != nil) != (test.memory == "") {
			t.Errorf("%+v is %q %q %v", test.set, threads, memory, err)
		}
	}
}
