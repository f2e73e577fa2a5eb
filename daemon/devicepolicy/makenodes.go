package devicepolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

const (
	// makeTimeout bounds the making of all nodes that are missing at once.
	makeTimeout = 10 * time.Second
	// waitTimeout bounds the wait for another maker: it ends a program that takes longer, which takes at most 2 s.
	waitTimeout = makeTimeout + 3*time.Second
	// makeRetryInterval is the time between two attempts to make the same node.
	makeRetryInterval = 30 * time.Second
	// helperFiles is how many capabilities one call of the vendor's program gets; it takes 256.
	helperFiles = 64
)

// Helper runs a program outside of the daemon's sandbox, with all rights of root where the daemon has them, and returns when it has
// ended. It is nvidia-modprobe, or what replaces it: the daemon itself may make no device node and load no module.
type Helper func(ctx context.Context, argv []string) error

// ErrHelperRuns is what a Helper returns that has not run the program: an earlier one has not ended.
var ErrHelperRuns = errors.New("an earlier program that makes device nodes still runs")

// nodeMaker makes the device nodes that the driver lacks, one maker at a time: a second one waits, and finds what the first has made.
// A maker acquires no lock of the order, so it may be waited for with any of them held.
type nodeMaker struct {
	mu    locks.Mutex[locks.Leaf] // protects makes
	makes chan struct{}           // closed when the maker that makes now has ended; nil: none does

	// Only the maker has these.
	epoch observe.Epoch        // of what was tried
	tried map[string]time.Time // when each node that is still missing was tried last
}

// begin waits until no other maker makes nodes. The caller calls end.
func (m *nodeMaker) begin(ctx context.Context) error {
	for {
		m.mu.Lock()
		other := m.makes
		if other == nil {
			m.makes = make(chan struct{})
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *nodeMaker) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.makes)
	m.makes = nil
}

// triedKey is what an attempt is of: a node of a module that is loaded by now is another one.
func triedKey(n *isolation.MissingNode) string { return n.Name + " " + n.Reason }

// due returns the nodes that are to be made now, and notes that they are tried. What was tried before the driver was loaded again was
// not tried.
func (m *nodeMaker) due(all []isolation.MissingNode, epoch observe.Epoch, now time.Time) []isolation.MissingNode {
	if m.tried == nil || m.epoch != epoch {
		m.epoch, m.tried = epoch, map[string]time.Time{}
	}
	maps.DeleteFunc(m.tried, func(_ string, at time.Time) bool { return now.Sub(at) >= makeRetryInterval })
	var out []isolation.MissingNode
	for i := range all {
		key := triedKey(&all[i])
		if _, tried := m.tried[key]; tried || all[i].Manual {
			continue
		}
		m.tried[key] = now
		out = append(out, all[i])
	}
	return out
}

// concluded forgets what was not tried after all, and what is made: a node that is removed again is made again at once.
func (m *nodeMaker) concluded(due, left []isolation.MissingNode, ran bool) {
	for i := range due {
		key := triedKey(&due[i])
		if !ran || !slices.ContainsFunc(left, func(n isolation.MissingNode) bool { return triedKey(&n) == key }) {
			delete(m.tried, key)
		}
	}
}

// EnsureNodes makes the device nodes that leases need on managed GPUs and that are missing, loads the module of unified memory, and
// reports what is missing after that. changed: the node is to be observed again. It has deadlines of its own, and may use all of its
// time: what the caller does next has another one.
func (pol *Policy) EnsureNodes(ctx context.Context, node *observe.Node) (changed bool) {
	conditions := map[string]api.Condition{}
	defer func() { pol.Conditions.Replace("device-nodes", conditions) }()
	want := pol.State.Desired()
	if node.DriverErr != nil || len(want.Managed()) == 0 {
		return false
	}
	w, err := pol.DesiredSlices(want, node, nil)
	if err != nil {
		return false // Another condition reports it.
	}
	rules := rulesOfTenants(w)
	host, err := pol.Hosts.At(node)
	if err != nil {
		return false
	}
	rules = readable(rules)
	missing := isolation.MissingNodes(&host, pol.HostRoot, rules)
	if len(missing) > 0 && want.Enforcing() {
		left, err := pol.makeNodes(ctx, missing, func() ([]isolation.MissingNode, error) {
			host, err := pol.Hosts.At(nil)
			return isolation.MissingNodes(&host, pol.HostRoot, rules), err
		})
		if err != nil {
			return true
		}
		changed, missing = !slices.EqualFunc(left, missing, sameNode), left
	}
	reportMissing(conditions, missing)
	return changed
}

// rulesOfTenants are the device rules of all tenants, each once: on a large node tenants have thousands, most of them the same.
func rulesOfTenants(w *planner.DesiredSlices) (rules []cgroup.DeviceRule) {
	known := map[cgroup.DeviceRule]bool{}
	for i := range w.Slices {
		if w.Slices[i].Name.Grant != "" {
			continue
		}
		for _, r := range w.Slices[i].Devices {
			if !known[r] {
				known[r] = true
				rules = append(rules, r)
			}
		}
	}
	return rules
}

func sameNode(a, b isolation.MissingNode) bool { return a.Name == b.Name && a.Reason == b.Reason }

// readable are the rules as a lease has them: those of slices also allow to make the nodes.
func readable(rules []cgroup.DeviceRule) []cgroup.DeviceRule {
	out := cgroup.SortRules(slices.Clone(rules))
	for i := range out {
		out[i].Access = strings.ReplaceAll(out[i].Access, "m", "")
	}
	return slices.CompactFunc(out, func(a, b cgroup.DeviceRule) bool { return a.Name == b.Name })
}

// shownNodes is how many nodes a condition names.
const shownNodes = 4

// reportMissing adds a condition for the module, and one for all other nodes.
func reportMissing(conditions map[string]api.Condition, missing []isolation.MissingNode) {
	var names []string
	var first *isolation.MissingNode
	for i := range missing {
		m := &missing[i]
		if m.Unloaded {
			conditions[m.Name] = api.Condition{
				Message: "CUDA programs fail in leases: " + m.Name + ": " + m.Reason,
				Hint:    "load it: '" + m.Command() + "'; leases that run get it too",
			}
			continue
		}
		if names = append(names, m.Name); first == nil {
			first = m
		}
	}
	if first == nil {
		return
	}
	more := ""
	if n := len(names) - shownNodes; n > 0 {
		names, more = names[:shownNodes], fmt.Sprintf(" and %d more", n)
	}
	conditions["nodes"] = api.Condition{
		Message: fmt.Sprintf("device nodes of the driver are missing: %s%s: %s", strings.Join(names, ", "), more, first.Reason),
		Hint:    "make each: '" + first.Command() + "'; leases that need one are refused until then",
	}
}

// CheckNodes makes the nodes that a lease with these rules needs, and returns an error if one is missing after that: its program would
// fail. Without unified memory it does not: not every program uses CUDA, and the lease is warned. Each node is read, and the rules are
// those of the observation; the rest of the host is read again before something is made or refused.
func (pol *Policy) CheckNodes(ctx context.Context, node *observe.Node, l *lease.Lease, rules []cgroup.DeviceRule) error {
	find := func(observation any) ([]isolation.MissingNode, error) {
		host, err := pol.Hosts.At(observation)
		if err != nil {
			return nil, err
		}
		all := isolation.MissingNodes(&host, pol.HostRoot, rules)
		return slices.DeleteFunc(all, func(m isolation.MissingNode) bool { return m.Unloaded }), nil
	}
	again := func() ([]isolation.MissingNode, error) { return find(nil) }
	missing, err := find(node)
	if err == nil && len(missing) > 0 {
		missing, err = again()
	}
	if err == nil && len(missing) > 0 {
		missing, err = pol.makeNodes(ctx, missing, again)
	}
	if err != nil || len(missing) == 0 {
		return err
	}
	m := &missing[0]
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot start lease %s: %s is missing: %s", l.ID, m.Name, m.Reason),
		Hint:    "an administrator makes it with '" + m.Command() + "'",
	}
}

// makeNodes makes nodes unless they were tried a short time ago, and returns what find finds after that: an attempt whose end is not known
// may have succeeded. Another maker may be making them: what is missing is found again when that one has ended.
func (pol *Policy) makeNodes(
	ctx context.Context, missing []isolation.MissingNode, find func() ([]isolation.MissingNode, error),
) ([]isolation.MissingNode, error) {
	if pol.Helper == nil {
		return missing, nil
	}
	waiting, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if pol.nodes.begin(waiting) != nil {
		return missing, nil
	}
	defer pol.nodes.end()
	missing, err := find()
	if err != nil {
		return nil, err
	}
	due := pol.nodes.due(missing, observe.ReadEpoch(pol.HostRoot), pol.Now())
	commands := pol.commands(due)
	if len(commands) == 0 {
		return missing, nil
	}
	ran, err := pol.runAll(ctx, commands)
	names := make([]string, 0, len(due))
	for i := range due {
		names = append(names, due[i].Name)
	}
	level := slog.LevelInfo
	if !ran { // Each pass tries it again.
		level = slog.LevelDebug
	}
	pol.Log.Log(ctx, level, "device nodes of the driver were missing, and are made", "nodes", names, "error", err)
	left, err := find()
	if err != nil {
		return nil, err
	}
	pol.nodes.concluded(due, left, ran)
	return left, nil
}

// runAll runs the commands. ran is false when not all of them had their time: they count as not tried.
func (pol *Policy) runAll(ctx context.Context, commands [][]string) (ran bool, err error) {
	limited, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	var errs []error
	for _, argv := range commands {
		if limited.Err() != nil {
			errs = append(errs, limited.Err())
			break
		}
		errs = append(errs, pol.Helper(limited, argv))
	}
	err = errors.Join(errs...)
	return ctx.Err() == nil && !errors.Is(err, ErrHelperRuns), err
}

// commands are the calls that make nodes: of the vendor's program, which has the modes that the driver asks for, if it is installed.
func (pol *Policy) commands(due []isolation.MissingNode) [][]string {
	helper := findProgram(pol.HostRoot, "nvidia-modprobe")
	var out [][]string
	var files []string
	for i := range due {
		switch m := &due[i]; {
		case helper == "":
			for _, c := range m.Commands {
				if path := findProgram("/", c[0]); path != "" {
					out = append(out, append([]string{path}, c[1:]...))
				}
			}
		case m.Helper[0] == "-f":
			files = append(files, m.Helper...)
		default:
			out = append(out, append([]string{helper}, m.Helper...))
		}
	}
	for some := range slices.Chunk(files, 2*helperFiles) {
		out = append(out, append([]string{helper}, some...))
	}
	return out
}

// findProgram finds a program of the system below root; empty: there is none.
func findProgram(root, name string) string {
	for _, dir := range []string{"usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin"} {
		path := filepath.Join(root, dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
