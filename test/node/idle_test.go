package node

import (
	"context"
	"encoding/json"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// uses reads who holds GPU memory.
func uses(t *testing.T, n *harness.Node) []api.IdleUse {
	t.Helper()
	r := n.CLI(soon(t), "idle", "--json")
	i := new(api.Idle)
	if err := json.Unmarshal([]byte(r.Out), i); r.Code != 0 || err != nil {
		t.Fatalf("idle exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	return i.Uses
}

// awaitUse waits until condition returns true for a use.
func awaitUse(t *testing.T, n *harness.Node, what string, condition func(api.IdleUse) bool) api.IdleUse {
	t.Helper()
	var found api.IdleUse
	awaitLong(t, what, func() bool {
		list := uses(t, n)
		i := slices.IndexFunc(list, condition)
		if i >= 0 {
			found = list[i]
		}
		return i >= 0
	})
	return found
}

// awaitLong waits for what is measured over tens of seconds.
func awaitLong(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := harness.Await(ctx, time.Second, what, func() (bool, error) { return condition(), nil }); err != nil {
		t.Fatal(err)
	}
}

// A node that has no spec yet has the use of its GPUs in its account, by user: that is what it is installed for first. What holds
// memory and runs no kernels is idle, what runs some is not, and of a partitioned GPU it is not known.
func TestUseOutsideOfLeases(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	account, err := user.LookupId(strconv.Itoa(nobody))
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, quick)
	holding := startOutside(t, n, nobody, n.Burn("--gpu", "3", "--memory", "4GiB", "--hold")...)
	startOutside(t, n, 0, n.Burn("--gpu", "2", "--memory", "2GiB", "--kernel", "5ms", "--queue", "4")...)
	awaitOnGPU(t, n, 3, holding.pid(), func(p api.ProcessStatus) bool { return p.Memory != nil && *p.Memory >= 4<<30 })
	idle := awaitUse(t, n, "the process that holds memory is idle", func(h api.IdleUse) bool {
		return h.User == account.Username && h.Index == 3 && h.State == api.UseIdle
	})
	if idle.Lease != "" || idle.Stop != "" || !slices.Contains(idle.PIDs, holding.pid()) || idle.Used == nil || *idle.Used < 4<<30 ||
		idle.Held != *idle.Used || idle.IdleSince == nil || *idle.IdleSeconds <= 0 {
		t.Errorf("the idle use is %+v", idle)
	}
	busy := awaitUse(t, n, "the process that runs kernels is busy", func(h api.IdleUse) bool {
		return h.User == "root" && h.Index == 2 && h.State != api.UseUnknown
	})
	if busy.State != api.UseBusy {
		t.Errorf("the busy use is %+v", busy)
	}
	if r := n.CLI(soon(t), "idle", "--for", "5s"); r.Code != 0 || !strings.Contains(r.Out, account.Username) ||
		!strings.Contains(r.Out, "outside of leases: pid "+strconv.Itoa(holding.pid())) {
		t.Errorf("idle: %+v", r)
	}
	var u *api.Usage
	awaitLong(t, "the account has the memory of both", func() bool {
		u = usage(t, n, "--by", "user,gpu")
		return u.Outside != nil && len(u.Outside.Rows) == 2 && u.Outside.Rows[0].GPUMemoryMeasuredSeconds > 0 &&
			u.Outside.Rows[1].GPUMemoryMeasuredSeconds > 0 && u.Outside.Rows[0].BusyMeasuredSeconds > 0
	})
	for i := range u.Outside.Rows {
		r := &u.Outside.Rows[i]
		gib := map[string]api.Thousandths{account.Username: 4, "root": 2}[r.User]
		if gib == 0 || r.GPU == "" || r.Tenant != "" || r.HeldSeconds <= 0 || r.GPUMemoryGiBSeconds < gib*r.GPUMemoryMeasuredSeconds {
			t.Errorf("a row of the use outside of leases is %+v", r)
		}
	}
	if len(u.Rows) != 0 || u.Total.HeldSeconds != 0 {
		t.Errorf("use outside of leases is counted to leases: %+v", u)
	}
	n.StopDaemon() // It writes what it has.
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if after := usage(t, n, "--by", "user,gpu"); after.Outside == nil || len(after.Outside.Rows) != 2 ||
		after.Outside.Total.HeldSeconds < u.Outside.Total.HeldSeconds {
		t.Errorf("after a restart the account has %+v, before %+v", after.Outside, u.Outside)
	}
}
