package ledger

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// While a long file is read, other goroutines run again and again, also on one thread.
func TestLongFilesLetOthersRun(t *testing.T) {
	const lines, least = 10 * linesAtOnce, 5
	path := filepath.Join(t.TempDir(), "long")
	if err := os.WriteFile(path, []byte(strings.Repeat("line\n", lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	others, ended := 0, make(chan struct{})
	baton := make(chan struct{}, 1) // guards others and stop
	baton <- struct{}{}
	stop := false
	go func() {
		defer close(ended)
		for {
			<-baton
			others++
			done := stop
			baton <- struct{}{}
			if done {
				return
			}
			runtime.Gosched()
		}
	}()
	read := 0
	err := eachLine(path, -1, func([]byte, bool) bool { read++; return true })
	<-baton
	ran := others
	stop = true
	baton <- struct{}{}
	<-ended
	if err != nil || read != lines || ran < least {
		t.Errorf(
			"%d lines were read and another goroutine ran %d times (%v), want %d lines and at least %d times", read, ran, err, lines,
			least,
		)
	}
}
