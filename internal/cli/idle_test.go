package cli_test

import (
	"time"

	"github.com/gpushare/gpushare/api"
)

// labIdle has a use of each kind.
func labIdle() api.Idle {
	idle := func(h api.IdleUse, d time.Duration) api.IdleUse {
		h.State, h.IdleSeconds, h.IdleSince = api.UseIdle, ptr(d.Seconds()), ptr(noon.Add(-d))
		return h
	}
	const gib = 1 << 30
	return api.Idle{SchemaVersion: 1, At: noon, Uses: []api.IdleUse{
		idle(api.IdleUse{
			GPU: gpu10, Index: 10, Lease: "speech-serve-with-a-very-long-name-0042", Tenant: "speech", User: "dave", Held: 40 * gib,
			Used: ptr(uint64(3 * gib)), Stop: "gpushare lease stop speech-serve-with-a-very-long-name-0042",
		}, 52*time.Hour),
		idle(
			api.IdleUse{
				GPU:   gpu1,
				Index: 1,
				User:  "bob",
				PIDs:  []int{4711, 4712, 4713, 4714, 4715},
				Held:  8 * gib,
				Used:  ptr(uint64(8 * gib)),
			},
			130*time.Minute,
		),
		idle(api.IdleUse{
			GPU:    gpu2,
			Index:  2,
			Lease:  "vision-k8qg",
			Tenant: "vision",
			User:   "bob",
			Held:   30 * gib,
			Stop:   "gpushare lease stop vision-k8qg",
		}, 9*time.Minute),
		idle(api.IdleUse{
			GPU: gpu2, Index: 2, Lease: "vision-p0aa", Tenant: "vision", User: "alice", Held: 10 * gib, Used: ptr(uint64(gib)),
			Stop: "gpushare lease stop vision-p0aa",
		}, 20*time.Second),
		{
			GPU: gpu2, Index: 2, Lease: "vision-q7mm", Tenant: "vision", User: "alice", Held: 10 * gib, Used: ptr(uint64(gib)),
			State: api.UseBusy, IdleSeconds: ptr(0.0), Stop: "gpushare lease stop vision-q7mm",
		},
		{
			GPU:    gpu0,
			Index:  0,
			Lease:  "vision-3kq6",
			Tenant: "vision",
			User:   "alice",
			Held:   20 * gib,
			Used:   ptr(uint64(2 * gib)),
			State:  api.UseUnknown,
			Reason: "the driver reports no utilisation of processes in MIG mode",
			Stop:   "gpushare lease stop vision-3kq6",
		},
		{
			GPU: gpu0, Index: 0, User: "carol", PIDs: []int{99}, Held: gib, Used: ptr(uint64(gib)), State: api.UseUnknown,
			Reason: "the driver reports no utilisation of processes in MIG mode",
		},
	}}
}
