package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	account "github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

const (
	floodUID     = 65534
	floodLoops   = 3
	runsOfLoop   = 175     // Their starts and ends are more events than are kept.
	recordsLimit = 4 << 20 // of a day, above which leases of users with the most records are folded
	dayLimit     = 32 << 20
)

// runLoops runs short commands with long arguments as a member of blue, in loops at the same time.
func runLoops(t *testing.T, n *harness.Node, runs int) {
	t.Helper()
	script := `a=$(head -c 60000 /dev/zero | tr '\0' x)
		for i in $(seq ` + fmt.Sprint(runs) + `); do "$0" run -q -t blue --grant part -- true $a $a || exit; done`
	var loops []*exec.Cmd
	for range floodLoops {
		cmd := exec.CommandContext(eventually(t), "sh", "-c", script, filepath.Join(n.Bin, "gpushare"))
		cmd.Env, cmd.Dir = n.Environ(), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: floodUID, Gid: floodUID}}
		cmd.Stderr = new(strings.Builder)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, cmd)
	}
	for _, cmd := range loops {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, cmd.Stderr)
		}
	}
	awaitStatus(t, n, "a run has not ended", func(s *api.Status) bool { return len(s.Leases) == 0 })
}

// accountStore opens the account of a node whose daemon does not run.
func accountStore(t *testing.T, n *harness.Node) *account.Store {
	t.Helper()
	s, err := account.OpenStore(filepath.Join(n.Dir, "state", "ledger"), account.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addRuns adds copies of a finished run of a member to the account, as if there had been more before, until it has most bytes
// of them. It returns how many runs it added.
func addRuns(t *testing.T, n *harness.Node, most int) int {
	t.Helper()
	s := accountStore(t, n)
	recent, err := s.Recent()
	if err != nil {
		t.Fatal(err)
	}
	member := flooder(t)
	ended := slices.IndexFunc(recent, func(r account.Record) bool { return r.User == member && r.Kind == account.KindEnd })
	if ended < 0 {
		t.Fatal("no run of the member has ended")
	}
	var run []account.Record
	for _, r := range recent {
		if r.Lease == recent[ended].Lease {
			run = append(run, r)
		}
	}
	b, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	var all []account.Record
	added := most / len(b)
	for i := range added {
		for _, r := range run {
			r.Lease, r.Generation, r.Created = fmt.Sprintf("blue-before-%d", i), uint64(i), r.Created-int64(i)
			all = append(all, r)
		}
	}
	if err := s.Write(all); err != nil {
		t.Fatal(err)
	}
	return added
}

// A member who runs short commands with long arguments in loops loses the details of their own older runs. What is exact stays exact, what others
// did stays in the account and in the events, also over a restart, and what a file that is full does not take is counted.
func TestAFloodOfShortRunsOfOneMember(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	day := time.Now().UTC().YearDay()
	runOfRed(t, n)
	runLoops(t, n, 1)
	runs := floodLoops
	restartWith(t, n, func() { runs += addRuns(t, n, recordsLimit-500<<10) })
	xid(t, n)
	runLoops(t, n, runsOfLoop)
	runs += floodLoops * runsOfLoop
	checkXIDIsKept(t, n)

	restartWith(t, n, func() {})
	own := checkFlood(t, n, runs)
	if time.Now().UTC().YearDay() != day {
		t.Skip("what was run before midnight is not folded by what is run after it")
	}
	if own > runs*3/4 {
		t.Errorf("%d of %d runs have a row of their own", own, runs)
	}
	if u := usage(t, n, "--since", "48h"); u.LostRecords != 0 {
		t.Errorf("%d records are lost", u.LostRecords)
	}
}

// The records of a member are lost, and counted, when nothing makes the file of the day smaller. Those of others are not.
func TestADayOfTheAccountThatIsFull(t *testing.T) {
	enumeration.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	day := time.Now().UTC().YearDay()
	runLoops(t, n, 1)
	restartWith(t, n, func() { fillDay(t, n) })
	const more = 5
	runLoops(t, n, more)
	runOfRed(t, n)
	restartWith(t, n, func() {})
	if time.Now().UTC().YearDay() != day {
		t.Skip("the file of the day before does not take what is run today")
	}
	u := usage(t, n, "--since", "48h", "--by", "user")
	if r := rowOf(t, u, "root"); r.LeasesStarted != 1 || r.LeasesEnded != 1 {
		t.Errorf("of another user, whose records fit: %+v", r)
	}
	if r := rowOf(t, u, flooder(t)); r.LeasesStarted != floodLoops || u.LostRecords < 2*floodLoops*more {
		t.Errorf("%d runs that do not fit are %d lost records, and %+v", floodLoops*more, u.LostRecords, r)
	}
}

// fillDay fills the account of the day with records of a member that nothing makes smaller: ends whose starts are not there are no leases
// that could be folded. Few and large ones are read in less time than as many as a day can have.
func fillDay(t *testing.T, n *harness.Node) {
	t.Helper()
	s, length := accountStore(t, n), 56<<10
	var all []account.Record
	for i := range dayLimit/length + 1 {
		all = append(all, account.Record{
			Kind: account.KindEnd, At: time.Now().UnixMilli(), Lease: fmt.Sprintf("blue-full-%d", i), Generation: uint64(i) + 1,
			Tenant: "blue", Grant: "part", User: flooder(t), Facts: &account.Facts{Result: strings.Repeat("x", length)},
		})
	}
	if err := s.Write(all); err != nil {
		t.Fatal(err)
	}
}

func runOfRed(t *testing.T, n *harness.Node) {
	t.Helper()
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true", "of-red"); r.Code != 0 {
		t.Fatal(r)
	}
}

// restartWith restarts the daemon.
func restartWith(t *testing.T, n *harness.Node, meanwhile func()) {
	t.Helper()
	n.StopDaemon()
	meanwhile()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
}

// checkFlood checks what the account has of the flood and of the other user. It returns how many runs have a row of their own.
func checkFlood(t *testing.T, n *harness.Node, runs int) (own int) {
	t.Helper()
	u := usage(t, n, "--since", "48h", "--by", "user")
	if r := rowOf(t, u, "root"); r.LeasesStarted != 1 || r.LeasesEnded != 1 {
		t.Errorf("of another user: %+v", r)
	}
	r := rowOf(t, u, flooder(t))
	if r.LeasesStarted != int64(runs) || r.LeasesEnded != int64(runs) {
		t.Errorf("of %d runs: %+v", runs, r)
	}
	member := flooder(t)
	for _, row := range usage(t, n, "--since", "48h", "--by", "lease,user").Rows {
		if row.User == member && row.Lease != "" {
			own++
		}
	}
	return own
}

// xid causes an error of a GPU until it is an event: a daemon that has just started may not follow the GPU yet.
func xid(t *testing.T, n *harness.Node) {
	t.Helper()
	if err := harness.Await(soon(t), time.Second, "there is no event of an XID", func() (bool, error) {
		err := n.Ctl(soon(t), nil, "xid", "3", "95")
		return eventsOf(t, n)["gpu.xid"] > 0, err
	}); err != nil {
		t.Fatal(err)
	}
}

// checkXIDIsKept checks that an error of a GPU is among the events after more starts and ends of leases than are kept.
func checkXIDIsKept(t *testing.T, n *harness.Node) {
	t.Helper()
	kinds := eventsOf(t, n)
	// With all starts and ends nothing was pushed out.
	if kinds["gpu.xid"] == 0 || kinds["lease.started"]+kinds["lease.ended"] >= 2*floodLoops*runsOfLoop {
		t.Errorf("the kinds of events are %v", kinds)
	}
}

// eventsOf counts the events that are kept, by kind.
func eventsOf(t *testing.T, n *harness.Node) map[string]int {
	t.Helper()
	kinds := map[string]int{}
	if err := n.Client().EventsBetween(soon(t), "1h", "", func(e api.Event) { kinds[e.Kind]++ }); err != nil {
		t.Fatal(err)
	}
	return kinds
}

// flooder is the name of the member.
func flooder(t *testing.T) string {
	t.Helper()
	u, err := user.LookupId(strconv.Itoa(floodUID))
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

func rowOf(t *testing.T, u *api.Usage, name string) *api.UsageRow {
	t.Helper()
	for i := range u.Rows {
		if u.Rows[i].User == name {
			return &u.Rows[i]
		}
	}
	t.Fatalf("there is no row of %s: %+v", name, u.Rows)
	return nil
}
