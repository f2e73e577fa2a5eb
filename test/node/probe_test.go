package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hostile"
	"github.com/gpushare/gpushare/test/leftover"
	"github.com/gpushare/gpushare/test/programs"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

// probeEnv holds a probe in JSON. With it this test binary makes one request and exits.
const probeEnv = "GPUSHARE_TEST_PROBE"

// probe is one request and its socket.
type probe struct {
	Socket             string `json:",omitempty"`
	Method, Path, Body string

	Opens  string // instead: a device, which it tries to open in several ways
	Sends  string // instead: a path, which it opens and sends to the process that connects to Socket
	Hands  bool   // instead: it sends its standard output to the process that listens on Socket
	Keeps  bool   // instead: it receives that descriptor and keeps it
	Silent bool   // instead: it connects to Socket, a control socket of MPS, and says nothing
	Joins  bool   // instead: it connects to Socket, a control socket of MPS, says nothing for 10 ms, ends the connection and begins again
	// Becomes is, instead, a program that it executes when it was answered. It prints the descriptor of its connection before.
	Becomes []string `json:",omitempty"`
	Fork    string   // instead: processes whose parents have ended; it writes their pids to Socket, a named pipe
}

// reply is the answer. Of an endless answer only the beginning is kept.
type reply struct {
	Status int
	Body   string
	Error  string
}

func TestMain(m *testing.M) {
	tracing.Main()
	hostile.Main()
	silentfs.Main()
	if text := os.Getenv(probeEnv); text != "" {
		var p probe
		r := reply{}
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			r.Error = err.Error()
		} else if p.Fork != "" {
			p.fork()
			os.Exit(0)
		} else if p.Sends != "" || p.Keeps {
			p.pass()
			os.Exit(0)
		} else if p.Hands {
			p.hand()
			os.Exit(0)
		} else if p.Opens != "" {
			p.opens()
			os.Exit(0)
		} else if p.Silent {
			p.sayNothing()
			os.Exit(0)
		} else if p.Joins {
			p.join()
			os.Exit(0)
		} else if p.Becomes != nil {
			p.become()
		} else if p.Method == "" {
			serve(p.Socket)
			os.Exit(0)
		} else {
			r = p.make()
		}
		_ = json.NewEncoder(os.Stdout).Encode(r) // The reader reports a missing reply.
		os.Exit(0)
	}
	code := leftover.Main(m)
	if copied != "" {
		os.RemoveAll(copied)
	}
	os.Exit(code)
}

// serve makes each request of its input.
func serve(socket string) {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		p := probe{Socket: socket}
		if in.Decode(&p) != nil || out.Encode(p.make()) != nil {
			return
		}
	}
}

func (p *probe) make() reply {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return client.Dial(ctx, p.Socket)
		}},
	}
	q, err := http.NewRequestWithContext(ctx, p.Method, "http://gpushare"+p.Path, strings.NewReader(p.Body))
	if err != nil {
		return reply{Error: err.Error()}
	}
	w, err := c.Do(q)
	if err != nil {
		return reply{Error: err.Error()}
	}
	defer w.Body.Close()
	if w.Header.Get("Content-Type") == "application/x-ndjson" {
		if strings.HasPrefix(p.Path, "/v1/events") {
			return reply{Status: w.StatusCode}
		}
		// The last line is the result.
		last := ""
		for s := bufio.NewScanner(w.Body); s.Scan(); {
			last = s.Text()
		}
		return reply{Status: w.StatusCode, Body: last}
	}
	b, err := io.ReadAll(w.Body)
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{Status: w.StatusCode, Body: string(b)}
}

// person is a caller, by credentials of the kernel.
type person struct {
	uid, gid int
	groups   []string
	inside   bool // as root of a new user namespace
}

// copied is the directory of the copy of prober, if it was made.
var copied string

// prober is a copy of this binary that all users can run: other users cannot read the build directory.
var prober = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gpushare-probe-")
	if err != nil {
		return "", err
	}
	copied = dir
	file := filepath.Join(dir, "probe")
	if err := programs.Write(file, b); err != nil {
		return "", err
	}
	return file, os.Chmod(dir, 0o755)
})

// request makes one request as a person, from a new process.
func (who person) request(t *testing.T, n *harness.Node, method, path, body string) reply {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(probe{Socket: n.Socket(), Method: method, Path: path, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := who.command(soon(t), program)
	cmd.Env = append(cmd.Env, probeEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s is not sent: %v: %s", method, path, err, errs.String())
	}
	var r reply
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Error != "" {
		t.Fatalf("%s %s is not answered: %v %s", method, path, err, out.String())
	}
	return r
}

// requester is a process of a person that makes one request after the other.
type requester struct {
	in  *json.Encoder
	out *json.Decoder
}

// requester starts a requester. It ends with the test.
func (who person) requester(t *testing.T, n *harness.Node) *requester {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(probe{Socket: n.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	cmd := who.command(t.Context(), program)
	cmd.Env = append(cmd.Env, probeEnv+"="+string(text))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return &requester{in: json.NewEncoder(in), out: json.NewDecoder(out)}
}

// request makes one request. The process has its own timeout.
func (a *requester) request(t *testing.T, method, path, body string) reply {
	t.Helper()
	if err := a.in.Encode(probe{Method: method, Path: path, Body: body}); err != nil {
		t.Fatalf("%s %s is not sent: %v", method, path, err)
	}
	var r reply
	if err := a.out.Decode(&r); err != nil || r.Error != "" {
		t.Fatalf("%s %s is not answered: %v %s", method, path, err, r.Error)
	}
	return r
}

// command is a program that runs as the person.
func (who person) command(ctx context.Context, args ...string) *exec.Cmd {
	if who.uid != 0 {
		groups := "--clear-groups"
		if len(who.groups) > 0 {
			groups = "--groups=" + strings.Join(who.groups, ",")
		}
		line := []string{"setpriv", fmt.Sprint("--reuid=", who.uid), fmt.Sprint("--regid=", who.gid), groups}
		if who.inside {
			line = append(line, "unshare", "--user", "--map-root-user")
		}
		args = append(line, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd
}
