package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// One rule for every id: it is written in full, or as its beginning, if that has shortestBeginning characters and nothing else begins
// with it. Tables show the beginnings of UUIDs.
const shortestBeginning = 4

// uuidLength is how long the UUID of a GPU is, as in GPU-8-4-4-4-12. A longer or equally long word is not looked up.
const uuidLength = len("GPU-00000000-0000-0000-0000-000000000000")

// beginsWith is what is meant by the beginning of an id: "" if there is none like it. An id in full means itself.
func beginsWith(what, word string, known []string) (string, error) {
	var like []string
	for _, id := range known {
		if id == word {
			return id, nil
		}
		if strings.HasPrefix(id, word) && !slices.Contains(like, id) {
			like = append(like, id)
		}
	}
	switch {
	case len(word) < shortestBeginning || len(like) == 0:
		return "", nil
	case len(like) == 1:
		return like[0], nil
	}
	shown := like[:min(len(like), 5)]
	more := ""
	if n := len(like) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return "", &api.Error{
		Kind:    api.KindInvalid,
		Message: fmt.Sprintf("%q begins several %ss: %s%s", word, what, strings.Join(shown, ", "), more),
		Hint:    "write more of the one that is meant",
	}
}

// withID does something with what has an id. If nothing has it, what is known is read, and what it is the beginning of is meant.
func withID(ctx context.Context, what, word string, known func(context.Context) ([]string, error), do func(id string) error) error {
	err := do(word)
	if !isNotFound(err) || len(word) < shortestBeginning {
		return err
	}
	ids, unknown := known(ctx)
	if unknown != nil {
		return err
	}
	id, several := beginsWith(what, word, ids)
	switch {
	case several != nil:
		return several
	case id == "" || id == word:
		return err
	}
	return do(id)
}

// withLease does something with a live lease, or with all also with one that has ended.
func (a *app) withLease(ctx context.Context, word string, all bool, do func(id string) error) error {
	return withID(ctx, "lease", word, func(ctx context.Context) ([]string, error) {
		leases, err := a.client.Leases(ctx, all)
		return idsOf(leases), err
	}, do)
}

func idsOf(leases []api.Lease) []string {
	ids := make([]string, 0, len(leases))
	for i := range leases {
		ids = append(ids, leases[i].ID)
	}
	return ids
}

// withOperation does something with a change that runs or has ended.
func (a *app) withOperation(ctx context.Context, word string, do func(id string) error) error {
	return withID(ctx, "operation", word, func(ctx context.Context) ([]string, error) {
		l, err := a.client.Operations(ctx)
		if err != nil {
			return nil, err
		}
		ids := make([]string, 0, len(l.Operations))
		for i := range l.Operations {
			ids = append(ids, l.Operations[i].ID)
		}
		return ids, nil
	}, do)
}

// withCondition does something with a condition.
func (a *app) withCondition(ctx context.Context, word string, do func(id string) error) error {
	return withID(ctx, "condition", word, func(ctx context.Context) ([]string, error) {
		s, err := a.client.Status(ctx)
		if err != nil {
			return nil, err
		}
		ids := make([]string, 0, len(s.Node.Conditions))
		for i := range s.Node.Conditions {
			ids = append(ids, s.Node.Conditions[i].ID)
		}
		return ids, nil
	}, do)
}

// gpuID writes out the beginning of a UUID, also before the :START of an instance. Any other word, an index too, is left as it is:
// the daemon finds it or refuses it.
func (a *app) gpuID(ctx context.Context, word string) (string, error) {
	uuid, instance, _ := strings.Cut(word, ":")
	if !shortUUIDLike(uuid) {
		return word, nil
	}
	s, err := a.client.Status(ctx)
	if err != nil {
		return word, nil // The daemon says what is wrong when it gets the request.
	}
	id, err := beginsWith("GPU", uuid, uuidsOf(s))
	if err != nil || id == "" {
		return word, err
	}
	return id + join(":", instance), nil
}

// gpuIDs writes out each.
func (a *app) gpuIDs(ctx context.Context, words []string) ([]string, error) {
	out := slices.Clone(words)
	for i, word := range words {
		var err error
		if out[i], err = a.gpuID(ctx, word); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// shortUUIDLike reports whether a word can be the beginning of a UUID, and no whole one.
func shortUUIDLike(word string) bool {
	return (strings.HasPrefix(word, "GPU-") || strings.HasPrefix(word, "MIG-")) && len(word) > len("GPU-") && len(word) < uuidLength
}

// uuidsOf are the UUIDs of a status, those of MIG devices too.
func uuidsOf(s *api.Status) []string {
	var out []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if out = append(out, g.UUID); g.MIG != nil {
			for j := range g.MIG.Instances {
				out = append(out, g.MIG.Instances[j].UUIDs...)
			}
		}
	}
	return slices.DeleteFunc(out, func(id string) bool { return id == "" })
}

// gpuNamed is the place in a status of the GPU with this index or UUID, or whose UUID begins so; -1 without one.
func gpuNamed(s *api.Status, word string) (int, error) {
	id := word
	if shortUUIDLike(word) {
		meant, err := beginsWith("GPU", word, uuidsOf(s))
		if err != nil {
			return -1, err
		}
		id = meant
	}
	return slices.IndexFunc(s.GPUs, func(g api.GPUStatus) bool {
		return g.UUID == id || g.Index >= 0 && gpuColumn(g.Index) == id
	}), nil
}
