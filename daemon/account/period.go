package account

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// defaultAge is the begin of a time without one.
const defaultAge = "7d"

// period reads the begin and the end of a time, each as an age or a date. Without since it is 7d, without until now.
func period(since, until string, now time.Time) (begin, end time.Time, err error) {
	if since == "" {
		since = defaultAge
	}
	if begin, err = server.ParseTime("since", since, now); err != nil {
		return begin, end, err
	}
	end = now
	if until != "" {
		if end, err = server.ParseTime("until", until, now); err != nil {
			return begin, end, err
		}
	}
	if !begin.Before(end) {
		return begin, end, &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot show the time since %s until %s: it ends before it begins", since, until),
		}
	}
	return begin, end, nil
}
