//go:build engines

package engines

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// parts are the units that claims are prepared by.
var parts = []string{"gpushare-kubelet", "lab-kubelet", "lab-containerd", "gpushared"}

// Each part is killed and started again while claims are prepared: pods go on with their leases, and what is deleted is unprepared.
func (l *lab) claimsOutliveKills(t *testing.T) {
	instance, part := l.working(t, "killed-mig", "mig-3g", "8GiB"), l.working(t, "killed-part", "part-30g", "20GiB")
	state := "processes_of " + instance + "; processes_of " + part + "; leases"
	before := l.node.do(t, time.Minute, state)
	for _, unit := range parts {
		l.node.do(t, 2*time.Minute, "killed "+unit+".service; until_true 60 answers")
		if after := l.node.do(t, time.Minute, state); after != before {
			t.Errorf("after a kill of %s:\n%s\nbefore:\n%s", unit, after, before)
		}
	}
	l.claimant(t, "killed-new", "mig-1g")
	l.wants(t, "killed-new", running)
	for _, name := range []string{"killed-mig", "killed-part", "killed-new"} {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}

// mostInstants is more than one Prepare or Unprepare passes.
const mostInstants = 40

// atEachInstant does a round for the first instant of Prepare and of Unprepare, the second, and so on: the instants are the requests of the
// plug-in, and what it does to files. The last round is that in which neither call passes as many; a round says where it was in both.
func (l *lab) atEachInstant(t *testing.T, round func(n int, name, template string) (first, last string)) {
	for n := 1; n <= mostInstants; n++ {
		first, last := round(n, "instant-"+strconv.Itoa(n), []string{"mig-1g", "part-30g"}[n%2])
		if first == "" && last == "" {
			if n == 1 {
				t.Error("the plug-in passes no instant")
			}
			l.node.do(t, time.Minute, "no_fault")
			return
		}
	}
	t.Fatalf("a call passes more than %d instants", mostInstants)
}

// The plug-in is killed at each instant of Prepare and of Unprepare: the pod runs with one lease, and nothing is left of it.
func (l *lab) pluginDiesAtEachInstant(t *testing.T) {
	l.atEachInstant(t, func(n int, name, template string) (first, last string) {
		dies := fmt.Sprintf("fault_at kill 'kubelet.*' %d", n)
		l.node.do(t, time.Minute, dies)
		l.claimantThat(t, name, "Always", template)
		uid := l.wants(t, name, running).Metadata.UID
		l.node.do(t, time.Minute, "until_true 30 one_lease_of "+uid)
		first = l.node.do(t, time.Minute, "instant")
		l.node.do(t, time.Minute, dies)
		l.remove(t, name)
		last = l.node.do(t, time.Minute, "instant")
		l.nothingLeft(t)
		t.Logf("%s with %s: killed at %q of Prepare and %q of Unprepare", name, template, first, last)
		return first, last
	})
}

// Each other part is killed while the plug-in is at an instant of Prepare and of Unprepare, and runs again before the plug-in goes on: the
// pod runs with one lease, and nothing is left of it. ENGINES_PARTS is how many parts are killed at each instant: by default one, in turns.
func (l *lab) othersDieAtEachInstant(t *testing.T) {
	others := parts[1:]
	in := func(n int) string { return others[n%len(others)] }
	for skip := range int(setting(t, "ENGINES_PARTS", 1)) {
		l.atEachInstant(t, func(n int, name, template string) (first, last string) {
			begins, ends := in(n+skip), in(n+skip+1)
			stops := fmt.Sprintf("fault_at stop 'kubelet.*' %d", n)
			l.node.do(t, time.Minute, stops)
			l.claimantThat(t, name, "Always", template)
			uid := l.wants(t, name, func(p *pod) bool { return p != nil }).Metadata.UID
			first = l.node.do(t, 5*time.Minute, "killed_at_instant "+begins+" shows "+name)
			l.wants(t, name, running)
			l.node.do(t, time.Minute, "until_true 30 one_lease_of "+uid)
			l.node.do(t, time.Minute, stops)
			l.delete(t, name)
			last = l.node.do(t, 5*time.Minute, "killed_at_instant "+ends+" nothing_left")
			l.wants(t, name, func(p *pod) bool { return p == nil })
			l.nothingLeft(t)
			t.Logf("%s with %s: %s killed at %q of Prepare, %s at %q of Unprepare", name, template, begins, first, ends, last)
			return first, last
		})
	}
}

// setting is a number of the environment.
func setting(t *testing.T, name string, or uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Parts are killed at drawn times after the kubelet has begun with a pod, and after the pod has ended. ENGINES_SEED repeats the draws of a
// run, and ENGINES_KILLS is how often each is done.
func (l *lab) partsDieAtDrawnTimes(t *testing.T) {
	seed := setting(t, "ENGINES_SEED", uint64(time.Now().UnixNano()))
	t.Logf("ENGINES_SEED=%d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	kill := func() string { return fmt.Sprintf("%s %.2f", parts[draw.IntN(len(parts))], draw.Float64()*3) }
	for i := range setting(t, "ENGINES_KILLS", 8) {
		name, template := fmt.Sprintf("drawn-%d", i), []string{"mig-1g", "part-30g"}[draw.IntN(2)]
		first, last := kill(), kill()
		t.Logf("%s with %s: %s s after the begin, %s s after the end", name, template, first, last)
		l.claimantThat(t, name, "Always", template)
		uid := l.wants(t, name, func(p *pod) bool { return p != nil }).Metadata.UID
		l.node.do(t, 5*time.Minute, "prepared_and_killed "+uid+" "+first)
		l.wants(t, name, running)
		if out, err := l.node.try(time.Minute, "until_true 30 one_lease_of "+uid); err != nil {
			rest, _ := l.node.try(time.Minute, "leases; journalctl -u gpushare-kubelet -u gpushared --no-pager -o cat | tail -n 30")
			t.Errorf("pod %s has not one lease: %s\n%s", name, out, rest)
		}
		l.delete(t, name)
		l.node.do(t, 5*time.Minute, "unprepared_and_killed "+uid+" "+last)
		l.wants(t, name, func(p *pod) bool { return p == nil })
		l.nothingLeft(t)
	}
}
