package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// stated finds the numbers of a sentence of the documentation.
func stated(t *testing.T, file, sentence string) []int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs", file))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(b)), " ")
	found := regexp.MustCompile(sentence).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("%s does not say %q", file, sentence)
	}
	var out []int
	for _, word := range found[1:] {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// The limits that the pages state are those of the running programs: for administrators, whom the daemon reads, and for members, whom
// the front reads.
func TestStatedLimits(t *testing.T) {
	enumeration.Long(t)
	n := startFronted(t)
	api := stated(
		t,
		"api.md",
		`The head of a request has at most (\d+) KiB, a body at most (\d+) MiB. One user may have (\d+) connections, all users together (\d+); callers without a role (\d+) and (\d+)`,
	)
	security := stated(
		t,
		"security.md",
		`connections \| (\d+) of one user, (\d+) of all; .* Without a role: (\d+) of one uid, (\d+) of all \|`,
	)
	request := stated(
		t,
		"security.md",
		`a request \| (\d+) KiB of head and (\d+) s until it has arrived, (\d+) MiB of body and (\d+) s for it`,
	)
	if fmt.Sprint(api[2:]) != fmt.Sprint(security) || api[0] != request[0] || api[1] != request[2] {
		t.Fatalf("api.md says %v, and security.md %v and %v", api, security, request)
	}
	who, idle := callers(), descriptorsOf(t, n.DaemonPID())
	connectionLimit := func(t *testing.T, n *harness.Node, name string, limit int, uids ...int) {
		t.Helper()
		err := harness.Await(soon(t), 50*time.Millisecond, "the connections before have ended", func() (bool, error) {
			return descriptorsOf(t, n.DaemonPID()) <= idle, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		connectionLimit(t, n, name, limit, uids...)
	}
	t.Run("requests", func(t *testing.T) { // Its connections end with it.
		for name, uid := range map[string]int{"root": 0, "a member": who[member].uid} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				headLimit(t, n, name, uid, api[0]<<10)
				bodyLimit(t, n, name, uid, api[1]<<20)
				slowLimits(t, n, name, uid, time.Duration(request[1])*time.Second, time.Duration(request[3])*time.Second)
			})
		}
	})
	connectionLimit(t, n, "one member", api[2], who[member].uid)
	connectionLimit(t, n, "one caller without a role", api[4], who[withoutRole].uid)
	without := make([]int, 2*api[5]/api[4])
	for i := range without {
		without[i] = 480000 + i
	}
	connectionLimit(t, n, "callers without a role", api[5], without...)
	// All users: as many members as are needed, by their group.
	members, names, lines := make([]int, 2*api[3]/api[2]), []string{}, []string{"gpushare-admin:*:471201:", "gpushare:*:471202:"}
	for i := range members {
		members[i] = 490000 + i
		names = append(names, fmt.Sprintf("limit%d", i))
		lines = append(lines, fmt.Sprintf("%s:*:%d:490000::/:/bin/sh", names[i], members[i]))
	}
	directory(t, n, answers(append(lines, "blue:*:490000:"+strings.Join(names, ","))...))
	if r := n.CLI(soon(t), "config", "reload"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	for _, uid := range members { // The directory is asked about a user when they connect for the first time.
		if err := harness.Await(soon(t), 50*time.Millisecond, fmt.Sprintf("uid %d is a member", uid), func() (bool, error) {
			c, err := dialAs(n.Socket(), uid, members[0])
			if err != nil {
				return false, err
			}
			defer c.Close()
			res, _ := exchange(t, c, "GET /v1/leases HTTP/1.1\r\nHost: gpushare\r\n\r\n")
			return res.StatusCode == http.StatusOK, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	connectionLimit(t, n, "all members", api[3], members...)
}

// headLimit sends heads of the limit and of one byte more.
func headLimit(t *testing.T, n *harness.Node, name string, uid, limit int) {
	t.Helper()
	for size, want := range map[int]int{limit: http.StatusOK, limit + 1: http.StatusRequestHeaderFieldsTooLarge, 20000: http.StatusRequestHeaderFieldsTooLarge} {
		const before, after = "GET /v1 HTTP/1.1\r\nHost: gpushare\r\nX-Long: ", "\r\n\r\n"
		head := before + strings.Repeat("x", size-len(before)-len(after)) + after
		if res, _ := exchange(t, memberConn(t, n, uid), head); res.StatusCode != want {
			t.Errorf("a head of %d bytes of %s is answered with %d, want %d", size, name, res.StatusCode, want)
		}
		// The same after another request, which may have arrived together with the beginning of this one.
		c := memberConn(t, n, uid)
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(c, before+after+head) }() // The answer may come before its end.
		in := bufio.NewReader(c)
		for _, each := range []int{http.StatusOK, want} {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			if res.StatusCode != each {
				t.Errorf("a second head of %d bytes of %s is answered with %d, want %d", size, name, res.StatusCode, each)
			}
		}
	}
}

// bodyLimit sends bodies of the limit and of one byte more.
func bodyLimit(t *testing.T, n *harness.Node, name string, uid, limit int) {
	t.Helper()
	for size, tooLarge := range map[int]bool{limit: false, limit + 1: true} {
		const before, after = `{"tenant":"none","command":["true"]`, "}"
		body := before + strings.Repeat(" ", size-len(before)-len(after)) + after
		_, answer := exchange(
			t, memberConn(t, n, uid),
			fmt.Sprintf("POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: %d\r\n\r\n%s", size, body),
		)
		if strings.Contains(answer, "larger than 1 MiB") != tooLarge {
			t.Errorf("a body of %d bytes of %s is answered with %s", size, name, answer)
		}
	}
}

// slowLimits sends a head and a body that do not arrive. A connection ends after its time, and not before: the other side of the
// measure is what a busy host allows.
func slowLimits(t *testing.T, n *harness.Node, name string, uid int, head, body time.Duration) {
	t.Helper()
	for _, c := range []struct {
		what, text string
		limit      time.Duration
	}{
		{"head", "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n", head},
		{"body", "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 1000\r\n\r\n{", body},
	} {
		t.Run("slow "+c.what, func(t *testing.T) {
			t.Parallel()
			conn := memberConn(t, n, uid)
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := io.WriteString(conn, c.text); err != nil {
				t.Fatal(err)
			}
			_, err := io.ReadAll(conn)
			if after := time.Since(began); errors.Is(err, os.ErrDeadlineExceeded) || after < c.limit-time.Second {
				t.Errorf("a %s of %s that does not arrive has its connection for %v, want %v", c.what, name, after, c.limit)
			}
		})
	}
}

// connectionLimit opens connections until one is refused, and answers how many are open.
func connectionLimit(t *testing.T, n *harness.Node, name string, limit int, uids ...int) {
	t.Helper()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range limit/len(uids) + 2 {
		for _, uid := range uids {
			c, err := dialAs(n.Socket(), uid, uids[0])
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
	}
	answered := func(c net.Conn) bool {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET /v1 HTTP/1.1\r\nHost: gpushare\r\n\r\n"); err != nil {
			return false
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, err = io.ReadAll(res.Body)
		return err == nil
	}
	served := 0
	for _, c := range open {
		if answered(c) {
			served++
		}
	}
	if served != limit {
		t.Errorf("%d connections of %s are served, want %d", served, name, limit)
	}
}
