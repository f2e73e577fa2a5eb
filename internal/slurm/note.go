package slurm

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Note is what the Prolog leaves for the tasks of its job: they run as its user, who may not ask for the lease of a key.
type Note struct {
	// Run is how often the job was requeued before, for the Epilog: Slurm gives it the number of the next run if the job is requeued.
	Run         string            `json:"run,omitempty"`
	Refused     string            `json:"refused,omitempty"`     // why the job has no lease; empty: it has one, or the site gives none of what it has
	Notice      string            `json:"notice,omitempty"`      // why its lease is not what it requests
	Devices     map[string]string `json:"devices,omitempty"`     // by what SLURM_JOB_GPUS says, what CUDA calls it
	Environment map[string]string `json:"environment,omitempty"` // of the lease
	Unset       []string          `json:"unset,omitempty"`
}

// MostNote is the size of a note in bytes, at most.
const MostNote = 64 << 10

const visible = "CUDA_VISIBLE_DEVICES"

// NoteOf is the note of a job in these places.
func NoteOf(places []Place, g *api.LeaseGrant) *Note {
	n := &Note{Devices: map[string]string{}}
	for i := range places {
		n.Devices[places[i].Slurm] = places[i].Device()
	}
	if g != nil {
		n.Environment, n.Unset = maps.Clone(g.Environment), g.Unset
		delete(n.Environment, visible) // A step may have less.
	}
	return n
}

// Text is the note as it is written.
func (n *Note) Text() ([]byte, error) {
	b, err := json.Marshal(n)
	if err == nil && len(b) > MostNote {
		err = fmt.Errorf("cannot write a note of %d bytes: it has at most %d", len(b), MostNote)
	}
	return b, err
}

// ParseNote reads a note.
func ParseNote(b []byte) (*Note, error) {
	n := new(Note)
	if err := json.Unmarshal(b, n); err != nil {
		return nil, fmt.Errorf("cannot read the note of the Prolog: %w", err)
	}
	return n, nil
}

// ForTask are the lines that Slurm takes from a TaskProlog, for a task with this environment.
func (n *Note) ForTask(getenv func(string) string) []string {
	var out []string
	line := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !strings.ContainsAny(text, "\n\r\x00") {
			out = append(out, text)
		}
	}
	for _, name := range n.Unset {
		if name != visible {
			line("unset %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.Environment)) {
		line("export %s=%s", name, n.Environment[name])
	}
	if devices := n.visible(getenv); devices != "" {
		line("export %s=%s", visible, devices)
	}
	if local := getenv("SLURM_LOCALID"); local != "" && local != "0" {
		return out // Each task of a step has the lines otherwise.
	}
	if n.Refused != "" {
		line("print gpushare: this job has no lease: %s", strings.Join(strings.Fields(n.Refused), " "))
	}
	if n.Notice != "" {
		line("print gpushare: %s", strings.Join(strings.Fields(n.Notice), " "))
	}
	return out
}

// visible are the devices of a task; empty: what Slurm has set is left. Slurm counts in it from 0 where it closes the other devices, and
// in its own order else. Where it gave the task a part of those of its step, which one is not known.
func (n *Note) visible(getenv func(string) string) string {
	list := getenv("SLURM_STEP_GPUS")
	if list == "" {
		list = getenv("SLURM_JOB_GPUS")
	}
	if list == "" {
		return ""
	}
	words := strings.Split(list, ",")
	if set := getenv(visible); set != "" && len(strings.Split(set, ",")) != len(words) {
		return ""
	}
	var out []string
	for _, w := range words {
		d := n.Devices[w]
		if d == "" {
			return ""
		}
		out = append(out, d)
	}
	return strings.Join(out, ",")
}
