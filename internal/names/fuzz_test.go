package names

import "testing"

// A directory may answer anything, and users set parts of their own entries.
func FuzzParse(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/bash\nred:x:1000:1000::/home/red:/bin/sh\n"))
	f.Add([]byte("gpu:x:44:red,blue\n+::::\n# comment\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range parse(b) {
			if !queryable(e.name) || e.id < 0 || e.id >= 1<<32-1 || e.primary < 0 || e.primary >= 1<<32-1 {
				t.Errorf("%+v of %q", e, b)
			}
		}
	})
}
