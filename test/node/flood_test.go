package node

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// One flood has more connections than a user may have.
const floodWidth = 400

// flood opens many connections of one kind in a loop, and prints a line after the first round. It does not return.
func (p *probe) flood() {
	body := `{"command":["true"],"tenant":"red","wait":"1h"}`
	get := "GET /v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n"
	// each handles one connection until it ends.
	each, ok := map[string]func(net.Conn){
		"idle": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"half": func(c net.Conn) { trickle(c, "GET /v1/status HTTP/1.1\r\nHost: gpushare\r\nX-Slow: ") },
		"body": func(c net.Conn) {
			trickle(c, "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: 1000000\r\n\r\n")
		},
		"connects": func(net.Conn) {},
		"slow": func(c net.Conn) { // It sends a request and never reads.
			for {
				if _, err := io.WriteString(c, get); err != nil {
					return
				}
			}
		},
		"requests": func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for {
				if _, err := io.WriteString(c, get); err != nil {
					return
				}
			}
		},
		"queue": func(c net.Conn) {
			fmt.Fprintf(c, "POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			_, _ = io.Copy(io.Discard, c)
		},
	}[p.Flood]
	if !ok {
		fmt.Println("there is no flood", p.Flood)
		return
	}
	var first sync.WaitGroup
	for range floodWidth {
		first.Add(1)
		go func() {
			begun := sync.OnceFunc(first.Done)
			for {
				c, err := net.Dial("unix", p.Socket)
				begun()
				if err != nil {
					time.Sleep(time.Millisecond) // The kernel refuses at once while the backlog is full and sends no event when it is not: this is the pace of the load.
					continue
				}
				each(c)
				c.Close()
			}
		}()
	}
	first.Wait()
	fmt.Println("at it")
	select {}
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
