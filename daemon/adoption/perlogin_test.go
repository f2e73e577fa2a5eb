package adoption

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
)

func TestPerLogin(t *testing.T) {
	withFixtures(t, func(t *testing.T, x *fixture) {
		v := tenantOf("vision", api.Members{Users: []string{"alice"}, Groups: []string{"lab"}}, "serve")
		v.Adopt = nil
		x.login(2001, "alice")
		x.login(2003, "carol")
		had := uint64(64 << 30)
		x.sessions.memory[2001] = &had
		memory := func(uid int) uint64 {
			if m := x.sessions.memory[uid]; m != nil {
				return *m
			}
			return 0
		}
		limit := api.Bytes(32 << 30)
		v.PerLogin = &api.MemorySpec{Memory: &limit}
		x.apply(v)
		x.adopt()
		x.adopt()
		if memory(2001) != 32<<30 || memory(2003) != 0 || x.sessions.sets != 1 {
			t.Errorf("alice has %d, carol %d, after %d writes", memory(2001), memory(2003), x.sessions.sets)
		}
		x.login(2002, "bob")
		x.adopt()
		if memory(2002) != 32<<30 {
			t.Errorf("bob, a member by group, has %d", memory(2002))
		}
		// Another program changes it: it is set again.
		x.sessions.memory[2002] = &had
		x.adopt()
		if memory(2002) != 32<<30 {
			t.Errorf("a changed limit stays %d", memory(2002))
		}
		limit = 16 << 30
		x.apply(v)
		x.adopt()
		if memory(2001) != 16<<30 || memory(2002) != 16<<30 {
			t.Errorf("with another limit alice has %d and bob %d", memory(2001), memory(2002))
		}
		x.logout(2002)
		// After a restart the spec has no limit, while bob is logged out.
		x.stop()
		x.start()
		v.PerLogin = nil
		x.apply(v)
		x.adopt()
		if memory(2001) != had || x.sessions.memory[2002] != nil {
			t.Errorf("after the spec dropped it alice has %d and bob %d", memory(2001), memory(2002))
		}
		sets := x.sessions.sets
		x.adopt()
		if x.sessions.sets != sets {
			t.Error("a second pass wrote again")
		}
	})
}

// The record of the limits is written again when another program has removed it: after a restart the limit of before is there again.
func TestTheRecordOfLoginLimitsIsRemoved(t *testing.T) {
	t.Parallel()
	x := newFixture(t, cgroup.Hierarchy{Mount: t.TempDir()}, false)
	if lost, err := x.Adopter.Revalidate(); len(lost) > 0 || err != nil {
		t.Errorf("without a limit %q is lost, %v", lost, err)
	}
	v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
	v.Adopt = nil
	x.login(2001, "alice")
	had, limit := uint64(64<<30), api.Bytes(32<<30)
	x.sessions.memory[2001] = &had
	v.PerLogin = &api.MemorySpec{Memory: &limit}
	x.apply(v)
	x.adopt()
	file := x.Adopter.RunDir.Path(loginLimitsFile)
	for range 2 {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if lost, err := x.Adopter.Revalidate(); !slices.Equal(lost, []string{file}) || err != nil {
			t.Errorf("after it was removed %q is lost, %v", lost, err)
		}
		if lost, err := x.Adopter.Revalidate(); len(lost) > 0 || err != nil {
			t.Errorf("after it was written again %q is lost, %v", lost, err)
		}
	}
	x.stop()
	x.start()
	v.PerLogin = nil
	x.apply(v)
	x.adopt()
	if m := x.sessions.memory[2001]; m == nil || *m != had {
		t.Errorf("after a restart and a spec without the limit alice has %v, want %d", m, had)
	}
}

// A limit counts when the kernel has it, not when it was requested.
func TestLoginsLimitedReadsTheKernel(t *testing.T) {
	x := newFixture(t, cgroup.Hierarchy{Mount: t.TempDir()}, false)
	v := tenantOf("vision", api.Members{Users: []string{"alice"}}, "serve")
	v.Adopt = nil
	limit := api.Bytes(32 << 30)
	v.PerLogin = &api.MemorySpec{Memory: &limit}
	x.apply(v)
	alice := x.login(2001, "alice")
	for _, c := range []struct {
		max  string
		held int
	}{{"max\n", 0}, {"34359738368\n", 1}, {"68719476736\n", 0}} {
		x.write(filepath.Join(x.h.Dir(alice.cgroup), "memory.max"), c.max)
		x.adopt()
		if n, err := x.LimitedUsers(); n != 1 || err != nil {
			t.Errorf("%d users have a limit, want 1: %v", n, err)
		}
		if held := x.LoginsLimited("vision", uint64(limit)); held != c.held {
			t.Errorf("with memory.max %q %d logins are limited, want %d", c.max, held, c.held)
		}
	}
}
