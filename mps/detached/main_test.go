package detached

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/leftover"
	"golang.org/x/sys/unix"
)

// starterEnv makes this binary start a service until it is killed, as gpushared may be. It is the directory.
const starterEnv = "MPS_TEST_STARTER"

// leaderlessEnv makes this binary a process whose main thread ends while others continue.
const leaderlessEnv = "MPS_TEST_LEADERLESS"

// A goroutine is certain to be on the main thread only during the initialisation of packages.
func init() {
	if os.Getenv(leaderlessEnv) == "" {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM)
	go func() {
		<-ended
		syscall.Exit(0) // os.Exit waits under the race detector
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// TestMain is also a starter of services.
func TestMain(m *testing.M) {
	if dir := os.Getenv(starterEnv); dir != "" {
		d := &Services{Dir: dir}
		if err := d.StartService(context.Background(), sleeper("s.service", "exec sleep 1000")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("started")
		for { // until it is killed; all goroutines must not wait for each other: without cgo the runtime ends the process then
			_, _ = unix.Poll(nil, -1)
		}
	}
	os.Exit(leftover.Main(m))
}

const deadline = 20 * time.Second
