package gpu

import "testing"

func TestNameOfAGPU(t *testing.T) {
	for _, c := range []struct {
		id             Identity
		name, argument string
	}{
		{Identity{UUID: "GPU-a", Index: 3}, "GPU 3", "3"},
		{Identity{UUID: "GPU-a"}, "GPU 0", "0"},
		{Identity{UUID: "GPU-a", Index: -1}, "GPU-a", "GPU-a"}, // It fell off the bus, and the driver gives it to another one.
	} {
		if name, argument := c.id.Name(), c.id.Argument(); name != c.name || argument != c.argument {
			t.Errorf("%+v is %q, %q", c.id, name, argument)
		}
	}
}
