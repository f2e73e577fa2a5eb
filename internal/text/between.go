package text

import "time"

// Minutes is the layout of a time to the minute.
const Minutes = "2006-01-02 15:04"

// Between is the text of a time from one moment to another, to the minute and with its zone: with both where summer time began or ended in
// between.
func Between(from, to time.Time) string {
	const zoned = Minutes + " MST"
	first := Minutes
	if offset(from) != offset(to) {
		first = zoned
	}
	return from.Format(first) + " to " + to.Format(zoned)
}

func offset(at time.Time) int {
	_, seconds := at.Zone()
	return seconds
}
