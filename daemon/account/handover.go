package account

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpushare/gpushare/internal/usage"
)

// handoverFile has the records that a run could not write until it was stopped. It is not on the disk that took none, and the next run
// writes them; after a boot they are lost.
const handoverFile = "account.json"

// mostHandedOver bounds them, in bytes: their file is in memory. The others are lost, and counted.
const mostHandedOver = 8 << 20

// handover is the content of the file.
type handover struct {
	Records []json.RawMessage `json:"records"`
}

// handOver gives what waits for the disk to the next run.
func (a *Account) handOver() {
	if a.RunDir == "" {
		return
	}
	now := a.now()
	a.mu.Lock()
	for _, r := range a.meter.Take(now, usage.AllLeases) {
		a.addLocked(&r)
	}
	for _, r := range a.outside.Take(now) {
		a.addLocked(&r)
	}
	var h handover
	size, lost := 0, int64(0)
	add := func(r *usage.Record) bool {
		b, err := json.Marshal(r)
		if err != nil || size+len(b) > mostHandedOver {
			return false
		}
		h.Records, size = append(h.Records, b), size+len(b)
		return true
	}
	for _, r := range a.pending.Records() {
		if !add(&r) {
			lost += max(1, r.Lost)
		}
	}
	if a.lost += lost; a.lost > 0 {
		a.lostLines++
		r := usage.Record{Kind: usage.KindLost, At: now.Date.UnixMilli(), Run: a.run, Part: a.lostLines, Lost: a.lost}
		b, err := json.Marshal(&r)
		if err == nil {
			h.Records = append(h.Records, b)
		}
	}
	a.mu.Unlock()
	if len(h.Records) == 0 {
		return
	}
	b, err := json.Marshal(h)
	if err == nil {
		err = a.RunDir.Write(handoverFile, b)
	}
	if err != nil {
		a.Log.Error("the last records of the account are lost", "count", len(h.Records), "error", err)
		return
	}
	a.Log.Warn("the last records of the account are written at the next start", "count", len(h.Records))
}

// takeOver adds what the previous run handed over to what waits for the disk, and returns it.
func (a *Account) takeOver() (records []usage.Record) {
	if a.RunDir == "" {
		return nil
	}
	b, damage, err := a.RunDir.Read(handoverFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var h handover
	if err == nil {
		err = damage.Err()
	}
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handed = true
	if err != nil {
		a.Log.Error("what the previous run could not write of the account is lost", "error", err)
		a.lost++ // at least
		return nil
	}
	for _, raw := range h.Records {
		var r usage.Record
		if json.Unmarshal(raw, &r) != nil {
			a.lost++
			continue
		}
		a.addLocked(&r)
		records = append(records, r)
	}
	return records
}

// dropHanded removes what the previous run handed over: it is on the disk now. What stays is written again by the next run, and counts
// once. The caller has the files.
func (a *Account) dropHanded() error {
	if !a.handed {
		return nil
	}
	if err := a.RunDir.Remove(handoverFile); err != nil {
		return fmt.Errorf("cannot remove what the previous run handed over: %w", err)
	}
	a.handed = false
	return nil
}
