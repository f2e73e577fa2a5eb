package systemd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/gpushare/gpushare/internal/boundedread"
)

const (
	// outputTimeout bounds one reading of the journal that does not follow it.
	outputTimeout = 30 * time.Second
	// maxMessage is the longest line of journalctl that is read: JSON of a line of output, which the journal splits at 48 KiB.
	maxMessage = 1 << 20
)

// Output copies from the journal what a lease's service printed since then, and the notices about it; only the last lines
// if lines is not negative. With ended it follows until ended is closed, and copies what was written by then.
func (a *Adapter) Output(ctx context.Context, id string, since time.Time, lines int, ended <-chan struct{}, to io.Writer) error {
	unit := programUnit(a.prefix, id)
	match := []string{"_SYSTEMD_UNIT=" + unit, "+", "OBJECT_SYSTEMD_UNIT=" + unit, "_UID=0"}
	a.syncJournal(ctx)
	from, cursor, err := a.outputFrom(ctx, match, since, lines)
	if err != nil {
		return err
	}
	r := &journalReader{program: a.journalctl, cursor: cursor, each: func(e entry) error {
		_, err := io.WriteString(to, e.line)
		return err
	}}
	if ended == nil {
		return r.readOnce(ctx, append(from, match...))
	}
	if err := r.read(ctx, append(slices.Clone(from), match...)); err != nil { // Each part of it has a deadline for its reader.
		return err
	}
	if err := a.follow(ctx, id, r, from, match, ended, to); err != nil {
		return err
	}
	// What was written before the end and was not yet read.
	a.syncJournal(ctx)
	return r.readOnce(ctx, append(r.next(from), match...))
}

// follow copies what comes after the last entry of a reader, from the one journalctl that follows the lease, until ended is closed.
func (a *Adapter) follow(
	ctx context.Context, id string, r *journalReader, from, match []string, ended <-chan struct{}, to io.Writer,
) error {
	args := append(append([]string{"--follow"}, r.next(from)...), match...)
	f := a.followers.join(id, r.cursor, func(ctx context.Context, each func(entry)) error {
		own := &journalReader{program: a.journalctl, each: func(e entry) error { each(e); return nil }}
		return own.read(ctx, args)
	})
	defer a.followers.leave(id, f)
	if f.after != r.cursor { // Others have the tail: what was printed between the last reading and now.
		if err := r.readOnce(ctx, append(r.next(from), match...)); err != nil {
			return err
		}
	}
	var err error
	r.cursor, err = a.followers.copyAfter(ctx, f, r.cursor, ended, to)
	return err
}

// outputFrom returns where reading begins, as options of journalctl: at a time, or at the first of the last lines, which is
// searched from the end, and the cursor of the entry before, if there is one. Seen on 252: with --since, --lines counts from there
// and shows the first lines.
func (a *Adapter) outputFrom(ctx context.Context, match []string, since time.Time, lines int) (from []string, before string, err error) {
	begin := "--since=@" + strconv.FormatInt(since.Unix(), 10)
	if lines < 0 {
		return []string{begin, "--lines=all"}, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	r := &journalReader{program: a.journalctl, each: func(entry) error { return nil }}
	if err := r.read(ctx, append([]string{"--reverse", begin, "--lines=" + strconv.Itoa(max(lines, 1))}, match...)); err != nil {
		return nil, "", err
	}
	switch {
	case r.cursor == "": // nothing was printed yet
		return []string{begin, "--lines=all"}, "", nil
	case lines == 0:
		return []string{"--after-cursor=" + r.cursor, "--lines=all"}, r.cursor, nil
	}
	return []string{"--cursor=" + r.cursor, "--lines=all"}, "", nil
}

// syncJournal makes the journal write what it has received.
func (a *Adapter) syncJournal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// If it fails, the last lines may be missing. The others are still shown.
	_ = exec.CommandContext(ctx, a.journalctl, "--sync").Run()
}

// journalReader reads messages from the journal and keeps the cursor of the last one.
type journalReader struct {
	program string
	each    func(entry) error
	cursor  string
	err     error // of each
}

// next returns where reading continues, as options of journalctl; from if nothing was read yet.
func (r *journalReader) next(from []string) []string {
	if r.cursor == "" {
		return slices.Clone(from)
	}
	return []string{"--after-cursor=" + r.cursor, "--lines=all"}
}

// readOnce runs journalctl for what is there now.
func (r *journalReader) readOnce(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	return r.read(ctx, args)
}

// read runs journalctl once.
func (r *journalReader) read(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(
		ctx,
		r.program,
		append([]string{"--no-pager", "--quiet", "--all", "--output=json", "--output-fields=MESSAGE"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot read the journal: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot read the journal: %w", err)
	}
	lines := boundedread.Scanner(out, maxMessage)
	for r.err == nil && lines.Scan() {
		r.line(lines.Bytes())
	}
	if r.err != nil || lines.Err() != nil {
		_ = cmd.Process.Kill() // Its output is no longer read.
	}
	err = cmd.Wait()
	switch {
	case r.err != nil:
		return r.err
	case lines.Err() != nil:
		return fmt.Errorf("cannot read the journal: %w", lines.Err())
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("cannot read the journal: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return ctx.Err()
}

// line copies one message. A message that is not text is an array of its bytes.
func (r *journalReader) line(b []byte) {
	var e struct {
		Cursor  string          `json:"__CURSOR"`
		Message json.RawMessage `json:"MESSAGE"`
	}
	if json.Unmarshal(b, &e) != nil {
		return // Half a line of a journalctl that was stopped.
	}
	var text string
	if json.Unmarshal(e.Message, &text) != nil {
		var numbers []int
		if json.Unmarshal(e.Message, &numbers) != nil {
			return
		}
		raw := make([]byte, len(numbers))
		for i, n := range numbers {
			raw[i] = byte(n)
		}
		text = string(raw)
	}
	r.cursor = e.Cursor
	r.err = r.each(entry{e.Cursor, text + "\n"})
}

// Note writes a line to the journal as one about the process, so that it is shown with the process's service.
func (a *Adapter) Note(pid int, line string) error {
	if err := journal.Send(line, journal.PriNotice, map[string]string{"OBJECT_PID": strconv.Itoa(pid)}); err != nil {
		return fmt.Errorf("cannot write to the journal: %w", err)
	}
	return nil
}

// ServiceOutput returns at most n of the last lines that a service printed; none when the journal cannot be read.
func (a *Adapter) ServiceOutput(ctx context.Context, name string, n int) []string {
	a.syncJournal(ctx)
	var out bytes.Buffer
	r := &journalReader{program: a.journalctl, each: func(e entry) error { out.WriteString(e.line); return nil }}
	// By this boot and the program itself: systemd's own messages about the unit are not of the program.
	if err := r.read(ctx, []string{"--boot", "--lines=" + strconv.Itoa(n), "_SYSTEMD_UNIT=" + name + ".service"}); err != nil ||
		out.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}
