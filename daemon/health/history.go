package health

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
)

// historyFile has the hours of readings of each GPU. It is written once an hour and when the daemon stops: after a power cut an hour is
// missing.
const historyFile = "health-history.json"

// loadHistory reads what the previous run kept. Without it the trends begin again.
func (k *Health) loadHistory() {
	b, damage, err := k.StateDir.Read(historyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	kept := map[gpu.UUID]rules.History{}
	if err = cmp.Or(err, damage.Err()); err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		k.Log.Warn("the history of the health of GPUs begins again", "error", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range kept {
		k.ofLocked(id).history = kept[id]
	}
}

// saveHistory writes the hours of the GPUs that the node has.
func (k *Health) saveHistory() {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := map[gpu.UUID]*rules.History{}
	node := k.Observed()
	for i := range node.GPUs {
		if g := k.ofLocked(node.GPUs[i].Identity.UUID); len(g.history.Hours) > 0 {
			kept[node.GPUs[i].Identity.UUID] = &g.history
		}
	}
	if len(kept) == 0 {
		return
	}
	b, err := json.Marshal(kept)
	if err == nil {
		err = k.StateDir.Write(historyFile, b)
	}
	if err != nil {
		k.Log.Warn("cannot keep the history of the health of GPUs", "error", err)
	}
}
