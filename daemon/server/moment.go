package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// The range of an age. The account keeps no records that are older than the highest.
const (
	leastAge = time.Minute
	mostAge  = 435 * 24 * time.Hour
	ageRange = "write 1m to 435d, as in 36h or 7d, or a date (UTC) as in 2026-02-01"
)

// ParseTime reads the value of a key: an age, as in 36h or 7d, or a date.
func ParseTime(name, s string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return inRange(name, s, at, now)
	}
	if at, err := time.ParseInLocation(time.DateOnly, s, now.Location()); err == nil {
		return inRange(name, s, at, now)
	}
	d, err := api.ParseDuration(s)
	if errors.Is(err, api.ErrDurationTooLong) {
		return time.Time{}, outOfRange(name, s)
	}
	if err != nil {
		return time.Time{}, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot read %s %q: it is no age and no date: %s", name, s, ageRange),
		}
	}
	age := time.Duration(d)
	if age < leastAge || age > mostAge {
		return time.Time{}, outOfRange(name, s)
	}
	return inRange(name, s, now.Add(-age), now)
}

// Period reads the keys since and until, each with ParseTime. Without a key its time is zero.
func (c *Call) Period(now time.Time) (since, until time.Time, err error) {
	for key, at := range map[string]*time.Time{"since": &since, "until": &until} {
		if s := c.Text(key); s != "" {
			if *at, err = ParseTime(key, s, now); err != nil {
				return since, until, err
			}
		}
	}
	return since, until, nil
}

func inRange(name, s string, at, now time.Time) (time.Time, error) {
	if at.After(now) || now.Sub(at) > mostAge {
		return at, outOfRange(name, s)
	}
	return at, nil
}

func outOfRange(name, s string) error {
	return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot use %s %q: it is out of range: %s", name, s, ageRange)}
}
