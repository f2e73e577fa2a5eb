package account

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/api"
)

// addGPUs adds the indexes of GPUs to the rows, and how much all GPUs could have been used.
func (a *Account) addGPUs(ctx context.Context, u *api.Usage, now time.Time) error {
	if a.GPUs == nil {
		return nil
	}
	index := map[string]int{}
	all := a.GPUs()
	for i := range all {
		if all[i].Index >= 0 {
			index[string(all[i].UUID)] = all[i].Index
		}
	}
	rows := [][]api.UsageRow{u.Rows}
	if u.Outside != nil {
		rows = append(rows, u.Outside.Rows)
	}
	for _, list := range rows {
		for i := range list {
			if n, ok := index[list[i].GPU]; ok {
				list[i].GPUIndex = &n
			}
		}
	}
	first, err := a.firstDay(ctx)
	if err != nil || first.IsZero() || len(all) == 0 {
		return err
	}
	begin, end := u.Since, u.Until
	if first.After(begin) {
		begin = first
	}
	if now.Before(end) {
		end = now
	}
	length := max(0, end.Sub(begin))
	u.Capacity = &api.UsageCapacity{GPUs: len(all), GPUSeconds: api.Thousandths(length.Milliseconds() * int64(len(all)))}
	return nil
}

// firstDay is when the account begins; the zero time: it is empty.
func (a *Account) firstDay(ctx context.Context) (time.Time, error) {
	if err := a.acquireFiles(ctx); err != nil {
		return time.Time{}, err
	}
	defer a.releaseFiles()
	if a.store == nil {
		return time.Time{}, nil
	}
	return a.store.Begin()
}
