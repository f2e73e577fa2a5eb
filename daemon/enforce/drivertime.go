package enforce

import (
	"fmt"
	"strings"
	"time"
)

// conditionDriverTime says that the readings of a GPU take more of the driver's time than intended.
const conditionDriverTime = "driver-time"

// chargeDriver charges the driver's time of the readings, and reports when it exceeds the budget.
func (s *sampler) chargeDriver(waited time.Duration) {
	s.spent += waited
	total := s.spent
	if s.en.ReadingTime != nil {
		total = s.en.ReadingTime(s.id)
	}
	now := s.now()
	s.control.Sampling.Spent(now, total)
	load, exceeded := s.control.Sampling.DriverLoad(now)
	if exceeded == s.exceeded {
		return
	}
	s.exceeded = exceeded
	if !exceeded {
		s.en.Conditions.NotTogether(conditionDriverTime, string(s.id), driverTimeText)
		return
	}
	s.en.Conditions.Together(conditionDriverTime, string(s.id), load, driverTimeText)
}

// driverTimeText is the one line for all GPUs: it is the driver that is slow.
func driverTimeText(gpus []string, most time.Duration) (message, hint string) {
	of, up := "GPU "+strings.Join(gpus, ", GPU "), ""
	if len(gpus) > 1 {
		up = "up to "
	}
	message = fmt.Sprintf(
		"readings of %s take %s%s of the driver's time each second, more than 2ms",
		of,
		up,
		most.Round(100*time.Microsecond),
	)
	return message, "their processes are listed less often; a newer driver lists processes faster"
}
