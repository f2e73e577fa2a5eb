package text

import "testing"

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1 << 10: "1 KiB", 512 << 20: "512 MiB", 30 << 30: "30 GiB", 59 << 29: "29.5 GiB",
		1004 << 30 / 10: "100.4 GiB", 3 << 40: "3 TiB", 2048 << 40: "2048 TiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for got, want := range map[string]string{
		Count(0, "step"): "0 steps", Count(1, "step"): "1 step", Count(2, "step"): "2 steps",
		Count(1, "process"): "1 process", Count(2, "process"): "2 processes",
		Count(3, "switch"): "3 switches", Count(2, "box"): "2 boxes", Count(2, "GPU"): "2 GPUs",
		Plural(1, "place"): "place", Plural(5, "place"): "places",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
