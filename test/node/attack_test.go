package node

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hostile"
)

// attackFixture is a node on which a member of red attacks a lease of a member of blue. Device nodes, cgroups and users are real.
type attackFixture struct {
	*harness.Node
	who    [columns]person
	victim *harness.Job // of blue
	its    *api.Lease
	top    string // the directory of the node's subtree
}

const battleSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    members: {users: [member, colleague]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 1GiB}}]
  - name: blue
    members: {groups: [blue]}
    grants: [{name: whole, exclusive: 1}]
`

func newAttackFixture(t *testing.T) *attackFixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	n := inDirectory(t)
	directory(t, n, peopleDirectory())
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, battleSpec)
	b := &attackFixture{Node: n, who: callers(), top: filepath.Join(unified(t), n.Subtree())}
	job, err := n.Spawn(
		b.as(t, anothers, "run", "-q", "--", "sh", "-c", `export SECRET=secret-of-blue; echo "lease=$GPUSHARE_LEASE."; exec sleep 600`),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	b.victim, b.its = job, leaseByID(status(t, n), leaseOf(job))
	if b.its == nil || b.its.Isolation.Cgroup == "" {
		t.Skipf("needs leases in cgroups: %+v", b.its)
	}
	return b
}

// as runs gpushare as one of the callers.
func (b *attackFixture) as(t *testing.T, column int, args ...string) *exec.Cmd {
	t.Helper()
	cmd := b.who[column].command(t.Context(), append([]string{filepath.Join(b.Bin, "gpushare")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Within one session every process may send SIGCONT to every other.
	cmd.Env = append(
		cmd.Env, "GPUSHARE_SOCKET="+b.Socket(), "GPUSIM_ROOT="+b.Root(), "VICTIM="+strconv.Itoa(b.victimPID()), "TOP="+b.top,
		"ITS="+b.victimDir(), "MOUNT="+filepath.Dir(b.top), "RUN="+filepath.Join(b.Dir, "run"), "STATE="+filepath.Join(b.Dir, "state"),
		"DEV="+filepath.Join(b.Root(), "dev"),
	)
	return cmd
}

func (b *attackFixture) victimPID() int {
	if b.victim == nil {
		return 0
	}
	return b.victim.PID()
}

// victimDir is the victim's cgroup.
func (b *attackFixture) victimDir() string {
	if b.its == nil {
		return ""
	}
	return filepath.Join(filepath.Dir(b.top), b.its.Isolation.Cgroup)
}

// attack runs a script as the member of red in a lease. Each line of its output is an attack that succeeded.
func (b *attackFixture) attack(t *testing.T, script string) {
	t.Helper()
	cmd := b.as(t, member, "run", "-q", "--", "sh", "-c", "exec 2>/dev/null\n"+script+"\necho it ran")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && out.Len() == 0 {
		t.Fatalf("the attack did not run: %v: %s", err, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if lines[len(lines)-1] != "it ran" {
		t.Errorf("the attack did not run to its end: %s%s", out.String(), errs.String())
	}
	for _, l := range lines {
		if l != "it ran" {
			t.Errorf("the attacker %s", l)
		}
	}
	b.unharmed(t)
}

// unharmed asserts that the victim is where it was, and runs.
func (b *attackFixture) unharmed(t *testing.T) {
	t.Helper()
	s, err := procfs.Read(b.victimPID())
	if err != nil || s.Dead() || s.State == 'T' {
		t.Fatalf("the victim is %c: %v", s.State, err)
	}
	if at, err := procfs.Cgroup(b.victimPID()); err != nil || at != b.its.Isolation.Cgroup {
		t.Errorf("the victim is in %s, %v, it was in %s", at, err, b.its.Isolation.Cgroup)
	}
	frozen, err := os.ReadFile(filepath.Join(b.victimDir(), "cgroup.freeze"))
	if err != nil || strings.TrimSpace(string(frozen)) != "0" {
		t.Errorf("the victim's cgroup is frozen: %s %v", frozen, err)
	}
}

// Attacks of a tenant on their own restrictions and on other tenants, each from inside a lease.
func TestTenantAttacks(t *testing.T) {
	t.Parallel()
	b := newAttackFixture(t)
	for _, a := range []struct{ name, script string }{
		{"moving to other cgroups", `
for d in $MOUNT $TOP $TOP/*.slice $TOP/*.slice/*.slice $ITS $(dirname $ITS) $(dirname $(dirname $ITS)); do
	for f in cgroup.procs cgroup.threads; do (echo $$ > $d/$f) && echo "moved to $d"; done
done`},
		{"moving others to the own cgroup", `
mine=$MOUNT$(sed -n 's/^0:://p' /proc/self/cgroup)
for p in $VICTIM 1 $PPID; do (echo $p > $mine/cgroup.procs) && echo "moved process $p"; done`},
		{"creating cgroups", `
mine=$MOUNT$(sed -n 's/^0:://p' /proc/self/cgroup)
for d in $mine $(dirname $mine) $TOP $MOUNT; do mkdir $d/mine-$$ && { echo "made $d/mine-$$"; rmdir $d/mine-$$; }; done`},
		{"moving out of a cgroup namespace", `
command -v unshare >/dev/null || exit
unshare --user --map-root-user --mount --cgroup sh -c '
	mount -t cgroup2 none /mnt || mount --bind $MOUNT /mnt
	for f in $(find /mnt -maxdepth 4 -name cgroup.procs) $MOUNT/cgroup.procs; do (echo $$ > $f) && echo "moved by $f"; done
	(echo 1 > $ITS/cgroup.freeze) && echo "froze the victim"
	mkdir /mnt/mine && echo "made a cgroup in a namespace"'`},
		{"freezing and killing others", `
for d in $ITS $(dirname $ITS) $(dirname $(dirname $ITS)) $TOP; do
	for f in cgroup.freeze cgroup.kill; do (echo 1 > $d/$f) && echo "wrote $d/$f"; done
done
for s in KILL STOP TERM CONT USR1; do kill -$s $VICTIM && echo "sent SIG$s"; done`},
		{"loosening limits", `
for d in $ITS $(dirname $ITS) $TOP/red.slice $TOP/red.slice/part.slice $MOUNT$(sed -n 's/^0:://p' /proc/self/cgroup); do
	for f in $d/*; do [ -f $f ] && [ -w $f ] && echo "may write $f"; done
done`},
		{"reading from others", `
cat /proc/$VICTIM/environ | grep -a SECRET && echo "read the environment"
for f in mem maps fd/0 fd/1 root/etc/passwd cwd/. ; do (exec 3< /proc/$VICTIM/$f) && echo "opened $f of the victim"; done
gpushare() { "$GPUSHARE" "$@"; }
grep -rs secret-of-blue $RUN $STATE && echo "found the secret"
find $RUN $STATE ! -type l -type f -readable | while read f; do echo "may read $f"; done`},
		{"planting files", `
find $RUN $STATE ! -type l ! -type s -writable | while read f; do echo "may write $f"; done
for d in $RUN $STATE $RUN/mps $RUN/units /run/cdi /run/gpushare; do
	[ -d $d ] && ln -s /etc/passwd $d/leases.json.tmp && echo "planted a link in $d"
done
rm -f $RUN/gpushare.sock && echo "removed the socket"
mv $RUN $RUN.old && echo "moved the run directory"
(exec 3>$RUN/gpushare.sock) && echo "opened the socket as a file"`},
		{"creating device nodes", `
for n in nvidia2 nvidia3 nvidiactl; do
	[ -c $DEV/$n ] || continue
	set -- $(stat -c '0x%t 0x%T' $DEV/$n)
	for d in /tmp /dev/shm $HOME; do mknod $d/mine-$$ c $1 $2 && { echo "made a node in $d"; rm -f $d/mine-$$; }; done
	unshare --user --map-root-user mknod /tmp/mine-$$ c $1 $2 && { echo "made a node in a namespace"; rm -f /tmp/mine-$$; }
done`},
	} {
		t.Run(a.name, func(t *testing.T) { b.attack(t, a.script) })
	}
}

// Another tenant's GPU cannot be opened by any path: device rules apply to the number of a device, not to its name.
func TestAnotherNodeForTheSameMinor(t *testing.T) {
	t.Parallel()
	b := newAttackFixture(t)
	if !b.RealNodes {
		t.Skip("needs device nodes that can be opened in the temporary directory")
	}
	if c := status(t, b.Node).Node.Conditions; slices.ContainsFunc(
		c, func(c api.Condition) bool { return strings.Contains(c.Message, "device rules are not enforced") },
	) {
		t.Skip("needs device programs")
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(b.Root(), "dev/nvidia3"), &st); err != nil {
		t.Fatal(err)
	}
	// Root prepared nodes, links and a node under the name of another GPU.
	prepared := filepath.Join(b.Dir, "prepared")
	if err := os.Mkdir(prepared, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nvidia2", "null", "anything"} {
		if err := unix.Mknod(filepath.Join(prepared, name), unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(prepared, name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(b.Root(), "dev/nvidia3"), filepath.Join(prepared, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(b.Root(), "dev/nvidia3"), filepath.Join(prepared, "soft")); err != nil {
		t.Fatal(err)
	}
	b.attack(t, `
may() { case $( (exec 3<$1) 2>&1 ) in *[Pp]ermitted*|*[Dd]enied*) ;; *) echo "is let through to $1" ;; esac; }
for f in $DEV/nvidia3 `+prepared+`/* /proc/self/root$DEV/nvidia3 /proc/$$/root$DEV/nvidia3 /proc/$VICTIM/root$DEV/nvidia3; do may $f; done
cd $DEV && may nvidia3
for inside in "setsid" "unshare --user --map-root-user" "unshare --user --map-root-user --mount --pid --fork" "nice" "nohup"; do
	case $($inside sh -c 'exec 3<$DEV/nvidia3' 2>&1) in *[Pp]ermitted*|*[Dd]enied*|*unshare*) ;; *) echo "is let through by $inside" ;; esac
done
( ( ( case $( (exec 3<$DEV/nvidia3) 2>&1 ) in *[Pp]ermitted*) ;; *) echo "is let through after three forks" ;; esac ) ) )
exec 2>/dev/null
may $DEV/nvidia2 > /tmp/own.$$; [ -s /tmp/own.$$ ] || echo "is denied the own GPU: the test shows nothing"; rm -f /tmp/own.$$`)
}

// All processes that a process starts, by any means, stay in the lease and end with it.
func TestForkedProcessesAreInTheLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	b := newAttackFixture(t)
	tag := 70000 + os.Getpid()%10000
	// They close the output, or its reader would wait for them.
	script := `
echo "lease=$GPUSHARE_LEASE."
exec >/dev/null 2>&1
sleep ` + fmt.Sprint(tag) + `.1 &
( sleep ` + fmt.Sprint(tag) + `.2 & )
( ( setsid sleep ` + fmt.Sprint(tag) + `.3 & ) & )
setsid sh -c '( setsid nohup sleep ` + fmt.Sprint(tag) + `.4 >/dev/null 2>&1 & ) &'
( exec <&- >&- 2>&-; cd /; umask 0; setsid sh -c 'sleep ` + fmt.Sprint(tag) + `.5 &' & )
unshare --user --map-root-user --pid --fork --cgroup sleep ` + fmt.Sprint(tag) + `.6 &
wait`
	job, err := b.Spawn(b.as(t, member, "run", "-q", "--", "sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	id := leaseOf(job)
	l := leaseByID(status(t, b.Node), id)
	if l == nil {
		t.Fatalf("there is no lease %s", id)
	}
	var found []procfs.Stat
	err = harness.Await(soon(t), 10*time.Millisecond, "they are not all started", func() (bool, error) {
		found = marked(t, fmt.Sprint("sleep ", tag, "."))
		return len(found) >= 6, nil
	})
	if err != nil && len(found) < 5 { // A host may give no namespaces to users.
		t.Fatalf("%v: %v", err, found)
	}
	for _, p := range found {
		if at, err := procfs.Cgroup(p.PID); err != nil || !strings.HasPrefix(at+"/", l.Isolation.Cgroup+"/") {
			t.Errorf("%s is in %s, %v, and its lease in %s", procfs.Command(t.Context(), p.PID), at, err, l.Isolation.Cgroup)
		}
	}
	// The first process ends, the lease stays for the others, and is then stopped.
	job.Kill()
	if leaseByID(status(t, b.Node), id) == nil {
		t.Error("the lease ended while processes of it run")
	}
	if r := b.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		log, _ := os.ReadFile(b.LogFile())
		t.Fatalf("the lease cannot be stopped: %s\n%s", r.Err, log)
	}
	if left := marked(t, fmt.Sprint("sleep ", tag, ".")); len(left) > 0 {
		t.Errorf("the lease ended without %v", left)
	}
	b.unharmed(t)
}

// marked finds processes by the beginning of their command.
func marked(t *testing.T, prefix string) []procfs.Stat {
	t.Helper()
	all, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s procfs.Stat) bool {
		return s.Dead() || !strings.HasPrefix(procfs.Command(t.Context(), s.PID), prefix)
	})
}

// Only root may write the files of the daemon, and files that other users may read contain nothing of a tenant.
func TestModesOfTheDaemonsFiles(t *testing.T) {
	t.Parallel()
	b := newAttackFixture(t)
	for _, top := range []string{b.top, filepath.Join(b.Dir, "run"), filepath.Join(b.Dir, "state")} {
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(p, &st); err != nil {
				return nil // It was removed in the meantime.
			}
			kind := st.Mode & unix.S_IFMT
			switch {
			case st.Uid != 0:
				t.Errorf("%s belongs to uid %d", p, st.Uid)
			case kind == unix.S_IFLNK:
			case st.Mode&0o022 != 0 && p != b.Socket():
				t.Errorf("%s has mode %o", p, st.Mode&0o7777)
			case kind == unix.S_IFREG && st.Mode&0o044 != 0 && top != b.top:
				t.Errorf("%s can be read by every user: mode %o", p, st.Mode&0o7777)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir, mode := range map[string]fs.FileMode{filepath.Join(b.Dir, "state"): 0o700, filepath.Join(b.Dir, "run"): 0o755} {
		if i, err := os.Stat(dir); err != nil || i.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, %v, want %v", dir, i.Mode().Perm(), err, mode)
		}
	}
	if i, err := os.Stat(b.Socket()); err != nil || i.Mode().Perm() != 0o666 {
		t.Errorf("the socket has mode %v, %v", i.Mode().Perm(), err)
	}
}

// Each hostile client of the socket, of a user with a role or without: others are served meanwhile, and the daemon and its front go on.
func TestHostileClients(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	b := newAttackFixture(t)
	daemon := b.DaemonPID()
	for _, c := range hostile.Clients {
		for _, column := range []int{member, withoutRole} {
			if c.Process || c.Members && column == withoutRole {
				continue
			}
			t.Run(c.Name+" of "+columnNames()[column], func(t *testing.T) {
				job := b.hostile(t, b.who[column], &c)
				if err := job.AwaitLine(soon(t), "ready"); err != nil {
					t.Fatal(err)
				}
				defer endHostile(t, job)
				for _, other := range []int{root0, anothers} {
					requester := b.who[other].requester(t, b.Node)
					for range 3 {
						began := time.Now()
						r := requester.request(t, "GET", "/v1/status", "")
						if elapsed := time.Since(began); r.Status != 200 || elapsed > mostUnderFlood {
							who := columnNames()[other]
							t.Errorf("next to one that %s: %s gets %d after %v: %.200s", c.Does, who, r.Status, elapsed, r.Body)
						}
					}
				}
				b.unharmed(t)
				if now := b.DaemonPID(); now != daemon {
					t.Errorf("the daemon %d ended", daemon)
				}
			})
		}
	}
	if memory := memoryPeak(t, daemon); memory > mostMemoryUnderFlood {
		t.Errorf("the daemon had %d bytes, want at most %d", memory, mostMemoryUnderFlood)
	}
}

// mostUnderFlood is the time limit of a request of another user meanwhile, including the start of a process on a busy host.
const mostUnderFlood = 15 * time.Second

// hostile starts a hostile client as a person. It runs when it says "ready".
func (b *attackFixture) hostile(t *testing.T, who person, c *hostile.Client, wrapper ...string) *harness.Job {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	cmd := who.command(t.Context(), append(wrapper, program)...)
	cmd.Env = append(cmd.Env, hostile.Environment(c.Name, c.N, who.uid, b.Socket()))
	job, err := b.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	return job
}

// endHostile ends a hostile client, which runs until then.
func endHostile(t *testing.T, job *harness.Job) {
	t.Helper()
	select {
	case <-job.Done():
		t.Errorf("it ended by itself: %s", job.Output())
	default:
	}
	job.Kill()
}
