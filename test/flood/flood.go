// Package flood sends requests to a daemon as a hostile user would: too many, too long, or never to their end. It runs in the
// process of that user, and asserts nothing.
package flood

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Width is how many connections one flood has: more than a user may have. EmulatedWidth is that in a virtual machine, whose emulated
// processor needs a minute for as many, and MixedWidth that of a mixed flood: as many users flood as one.
const Width, EmulatedWidth, MixedWidth = 400, 40, 140

// Mixed is all kinds of floods in one.
const Mixed = "mixed"

// kind is one kind of flood.
type kind struct {
	does    string         // what each connection does
	each    func(net.Conn) // does it until the connection ends
	members bool           // others may not make the request
}

var kinds = map[string]kind{
	"idle": {does: "opens connections and sends nothing", each: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
	"half": {does: "sends a head that does not end", each: func(c net.Conn) { trickle(c, "GET /v1/status"+head+"X-Slow: ") }},
	"body": {does: "sends a body that does not end", each: func(c net.Conn) {
		trickle(c, "POST /v1/leases"+head+"Content-Length: 1000000\r\n\r\n")
	}},
	"chunks": {does: "sends a body in chunks that does not end", each: func(c net.Conn) {
		trickle(c, "POST /v1/leases"+head+"Transfer-Encoding: chunked\r\n\r\nfffff\r\n")
	}},
	"connects":  {does: "opens and closes connections", each: func(net.Conn) {}},
	"slow":      {does: "requests the status and never reads", each: func(c net.Conn) { send(c, get("/v1/status")) }},
	"slow-list": {does: "requests the list of leases and never reads", each: func(c net.Conn) { send(c, get("/v1/leases?all=1")) }},
	"requests":  {does: "requests the status without a pause", each: reading(get("/v1/status"))},
	"lists":     {does: "requests the list of leases without a pause", each: reading(get("/v1/leases?all=1"))},
	"accounts":  {does: "requests the account without a pause", each: reading(get("/v1/usage"))},
	"explains":  {does: "requests what is read back without a pause", each: reading(get("/v1/explain?of=red"))},
	"events":    {does: "follows events on each connection", each: func(c net.Conn) { once(c, get("/v1/events")) }},
	"queue": {does: "fills the queue", members: true, each: func(c net.Conn) {
		once(c, lease([]string{"true"}, `,"wait":"1h"`))
	}},
	"commands": {does: "requests leases with commands of 900 kB", members: true, each: func(c net.Conn) {
		once(c, lease([]string{"true", strings.Repeat("x", 900_000)}, `,"wait":"1h"`))
	}},
	"programs": {does: "requests detached leases with commands of 900 kB", members: true, each: func(c net.Conn) {
		once(c, lease([]string{"true", strings.Repeat("x", 900_000)}, `,"wait":"1h","detach":{"path":"/bin/true","dir":"/","umask":18}`))
	}},
	"refused": {does: "requests leases that are refused", members: true, each: func(c net.Conn) { once(c, lease([]string{"true"}, ``)) }},
}

// Does says what a kind of flood does.
func Does(name string) string {
	if name == Mixed {
		return "does all of these at once"
	}
	return kinds[name].does
}

// OfMembers reports whether only members can make the requests of a kind.
func OfMembers(name string) bool { return kinds[name].members }

const head = " HTTP/1.1\r\nHost: gpushare\r\n"

func get(path string) string { return "GET " + path + head + "\r\n" }

// lease is a request for a lease of tenant red.
func lease(command []string, more string) string {
	body := `{"tenant":"red","command":["` + strings.Join(command, `","`) + `"]` + more + `}`
	return fmt.Sprintf("POST /v1/leases%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

// Names lists the kinds of floods.
func Names() []string {
	var out []string
	for name := range kinds {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Run opens connections of one kind in a loop, as many at a time as width, and calls begun after the first round. It does not return.
func Run(socket, name string, width int, begun func()) error {
	names := []string{name}
	if name == Mixed {
		names = Names()
	}
	if kinds[names[0]].each == nil {
		return fmt.Errorf("there is no flood %q", name)
	}
	var first sync.WaitGroup
	for i := range width {
		first.Add(1)
		each := kinds[names[i%len(names)]].each
		go func() {
			connected := sync.OnceFunc(first.Done)
			for {
				c, err := net.Dial("unix", socket)
				connected()
				if err != nil {
					// The kernel refuses at once while the backlog is full and sends no event when it is not: this is the pace of the load.
					time.Sleep(time.Millisecond)
					continue
				}
				each(c)
				c.Close()
			}
		}()
	}
	first.Wait()
	begun()
	select {}
}

// reading repeats a request and reads the answers.
func reading(request string) func(net.Conn) {
	return func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		send(c, request)
	}
}

// send repeats a request until the connection ends.
func send(c net.Conn, request string) {
	for {
		if _, err := io.WriteString(c, request); err != nil {
			return
		}
	}
}

// once makes one request and waits for its end.
func once(c net.Conn, request string) {
	if _, err := io.WriteString(c, request); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// trickle sends the beginning of a request and then single bytes.
func trickle(c net.Conn, beginning string) {
	if _, err := io.WriteString(c, beginning); err != nil {
		return
	}
	for t := time.NewTicker(100 * time.Millisecond); ; <-t.C {
		if _, err := io.WriteString(c, "x"); err != nil {
			return
		}
	}
}
