package hostile

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/test/flood"
)

// Client is one hostile client: a program that runs as a user until it is killed. A new one is one entry of Clients: test/node runs it
// against the programs as they are shipped, and the phase second-attack in virtual machines, with the limits of the units in force.
type Client struct {
	Name    string
	Does    string
	Attacks string // the promise that it is to break
	// Process: it attacks by what the daemon reads of it, when it is attached to a lease. Else it attacks over the socket.
	Process bool
	Members bool // a caller without a role has nothing to do it with
	// How much of it, on this host and in a virtual machine. 0 there: it does not run, because of Why.
	N, Machine int
	Why        string

	run func(n, uid int, arg string) (reached int, err error) // arg: the socket; a file for Locked
}

// What the clients attack, in the words of docs/security.md.
const (
	keepsServing = "A user cannot keep others from the daemon, nor fill its memory"
	waitsForNone = "No thread that others wait for closes, reads or waits for what a user sent or has"
)

// Clients are all of them, those of the socket last.
var Clients = append([]Client{
	{
		Name: Memory, Does: "declares a sparse mapping to be its command line and environment, which begin with Says",
		Attacks: keepsServing, Process: true, N: 512 << 20, Machine: 512 << 20, run: memory,
	},
	{
		Name: Descriptors, Does: "has that many descriptors of a device, as far as the limits of the host allow",
		Attacks: keepsServing, Process: true, N: 1 << 20, Machine: 20000, run: descriptors,
	},
	{
		Name: Threads, Does: "has that many threads, but an eighth of what the host allows at most",
		Attacks: keepsServing, Process: true, N: 60000, Machine: 300, run: threads,
	},
	{
		Name: Mappings, Does: "has that many mappings, as far as vm.max_map_count allows, and one of 1 GiB",
		Attacks: keepsServing, Process: true, N: 60000, Machine: 20000, run: mappings,
	},
	{
		Name: Locked, Does: "keeps the lock of its memory while a file system does not answer",
		Attacks: waitsForNone, Process: true, Why: "it needs a file system that becomes silent when its test says so", run: locked,
	},
	{
		Name: Passing, Does: "opens that many connections and passes a TCP socket that lingers on each",
		Attacks: waitsForNone, N: 60, Machine: 60, run: passing,
	},
}, floods()...)

// inMachines are the floods that also run by themselves in a virtual machine.
var inMachines = []string{"events", "slow-list", flood.Mixed}

// floods are the clients that only send, and all of them as one.
func floods() (out []Client) {
	for _, k := range append(flood.Names(), flood.Mixed) {
		width, machine, why := flood.Width, flood.EmulatedWidth, ""
		if k == flood.Mixed {
			width = flood.MixedWidth
		}
		if !slices.Contains(inMachines, k) {
			machine, why = 0, "an emulated processor has no time for each: the client "+flood.Mixed+" does it there"
		}
		out = append(out, Client{
			Name: k, Does: flood.Does(k), Attacks: keepsServing, Members: flood.OfMembers(k), N: width, Machine: machine, Why: why,
			run: func(n, uid int, socket string) (int, error) {
				if err := become(uid); err != nil {
					return 0, err
				}
				begun, failed := make(chan struct{}), make(chan error, 1)
				go func() { failed <- flood.Run(socket, k, n, func() { close(begun) }) }()
				select {
				case <-begun:
					return n, nil
				case err := <-failed:
					return 0, err
				}
			},
		})
	}
	return out
}

// Find returns a client by its name.
func Find(name string) (Client, bool) {
	i := slices.IndexFunc(Clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{}, false
	}
	return Clients[i], true
}

// Lines are the clients that run in a virtual machine, one a line: "process" or "socket", its name, how much of it, and who does it, "member" or
// "any".
func Lines() []string {
	var out []string
	for _, c := range Clients {
		kind, who := "socket", "any"
		if c.Process {
			kind = "process"
		}
		if c.Members {
			who = "member"
		}
		if c.Machine > 0 {
			out = append(out, fmt.Sprintln(kind, c.Name, c.Machine, who))
		}
	}
	return out
}
