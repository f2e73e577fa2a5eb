package converge

import "github.com/gpushare/gpushare/api"

// UpdateShares reports the GPUs on which live and reserved grants have more than 100 % of the time together, with what
// each gets.
func (cv *Converger) UpdateShares() {
	conditions := map[string]api.Condition{}
	for _, o := range cv.Table.Oversubscribed() {
		conditions[string(o.GPU)] = api.Condition{
			GPU: string(o.GPU), Message: o.Text(), Hint: "grant smaller shares, or use grants.gpus to give the grants different GPUs",
		}
	}
	cv.Conditions.Replace("shares", conditions)
}
