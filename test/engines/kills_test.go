//go:build engines

package engines

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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

// instants are the places of the plug-in at which it can kill itself, of Prepare and of Unprepare.
func instants(t *testing.T) (prepare, unprepare []string) {
	t.Helper()
	place := regexp.MustCompile(`faultpoint\.Hit\("(kubelet\.[a-z.-]+)"\)`)
	err := filepath.WalkDir("../../kubelet", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		for _, found := range place.FindAllStringSubmatch(readFile(t, path), -1) {
			if strings.HasPrefix(found[1], "kubelet.unprepare.") {
				unprepare = append(unprepare, found[1])
			} else {
				prepare = append(prepare, found[1])
			}
		}
		return nil
	})
	if err != nil || len(prepare) == 0 || len(unprepare) == 0 {
		t.Fatalf("the plug-in has the instants %v and %v: %v", prepare, unprepare, err)
	}
	return prepare, unprepare
}

// The plug-in is killed at each instant of Prepare and of Unprepare: the pod runs with one lease, and nothing is left of it.
func (l *lab) pluginDiesAtEachInstant(t *testing.T) {
	prepare, unprepare := instants(t)
	for i := range max(len(prepare), len(unprepare)) {
		name, template := "instant-"+strconv.Itoa(i), []string{"mig-1g", "part-30g"}[i%2]
		first, last := prepare[i%len(prepare)], unprepare[i%len(unprepare)]
		l.node.do(t, time.Minute, "dies_at "+first)
		l.claimantThat(t, name, "Always", template)
		uid := l.wants(t, name, running).Metadata.UID
		l.node.do(t, time.Minute, "died_at "+first+"; until_true 30 one_lease_of "+uid)
		l.node.do(t, time.Minute, "dies_at "+last)
		l.remove(t, name)
		l.node.do(t, time.Minute, "died_at "+last)
		l.nothingLeft(t)
	}
	l.node.do(t, time.Minute, "dies_no_more")
	t.Logf("killed at %s and %s", strings.Join(prepare, ", "), strings.Join(unprepare, ", "))
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
