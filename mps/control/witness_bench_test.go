package control

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/sockdiag"
	"github.com/gpushare/gpushare/mps"
)

// BenchmarkOtherClients compares the two ways to know whether another process was connected to a control daemon where tenants may change
// its limits: what the daemon has written, and the table of sockets. greeting is what an observation costs without either.
//
// The table is cheaper and simpler, and has only the connections of the moment. A command of a tenant lasts milliseconds and an
// observation is due every 30 s, so "a command of a tenant" is the part of the commands that a poll sees. What the daemon has written
// shows all of them.
func BenchmarkOtherClients(b *testing.B) {
	f := newFixtureOf(b, "535.261.03")
	if err := f.Start(b.Context(), mps.Settings{GPU: gpuA, Threads: 30}); err != nil {
		b.Fatal(err)
	}
	if st := f.Observe(b.Context(), deviceA); !st.Healthy() {
		b.Fatalf("observed %+v", st)
	}
	w, l := f.gpuState(deviceA), f.layout(deviceA)
	rec := l.readRecord()
	if !rec.watched() {
		b.Fatal("tenants may not change the limits of this version")
	}
	greet := func(b *testing.B, greet func() error) {
		before := logSize(b, f)
		for b.Loop() {
			if err := greet(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(logSize(b, f)-before)/float64(b.N), "log-B/op")
	}
	b.Run("greeting", func(b *testing.B) {
		greet(b, func() error { return greetClients(b.Context(), l.pipe(), nil) })
	})
	b.Run("greeting and what it has written", func(b *testing.B) {
		greet(b, func() error { return f.greet(b.Context(), l, w, rec) })
	})
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("table of %d sockets", n), func(b *testing.B) {
			connect(b, n)
			for b.Loop() {
				if _, err := connections(f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("a command of a tenant", func(b *testing.B) { benchmarkCommand(b, f) })
}

// benchmarkCommand measures for how long a command of a tenant is in the table of sockets, which is read all the time meanwhile.
func benchmarkCommand(b *testing.B, f *fixture) {
	const interval = 30 * time.Second // of observations
	seen, readings := time.Duration(0), 0
	for b.Loop() {
		ctx, ended := context.WithCancel(b.Context())
		var err error
		go func() {
			defer ended()
			_, err = f.tenantsControl().query(b.Context(), "get_server_list")
		}()
		for last := time.Now(); ctx.Err() == nil; readings++ {
			n, err := connections(f)
			if err != nil {
				b.Fatal(err)
			}
			now := time.Now()
			if n > 0 {
				seen += now.Sub(last)
			}
			last = now
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	each := seen / time.Duration(b.N)
	b.ReportMetric(float64(each.Microseconds())/1000, "ms-in-table/op")
	b.ReportMetric(100*each.Seconds()/interval.Seconds(), "%-of-commands-seen")
	b.ReportMetric(float64(readings)/float64(b.N), "readings/op")
}

// connections counts the connections to the control daemon in the table of sockets.
func connections(f *fixture) (n int, err error) {
	all, err := sockdiag.Connected()
	for i := range all {
		if strings.HasPrefix(all[i].Name, filepath.Join(f.pipe(), "control")) {
			n++
		}
	}
	return n, err
}

// connect makes so many connected sockets, until the benchmark has ended.
func connect(b *testing.B, sockets int) {
	b.Helper()
	for range sockets / 2 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) })
	}
}

func logSize(b *testing.B, f *fixture) int64 {
	b.Helper()
	info, err := os.Stat(f.logPath())
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}
