package enforce

import (
	"fmt"
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
		s.en.Conditions.Clear(conditionDriverTime, string(s.id))
		return
	}
	s.en.Conditions.Set(
		conditionDriverTime,
		string(s.id),
		fmt.Sprintf("readings of GPU %s take %s of the driver's time each second, more than 2ms", s.id, load.Round(100*time.Microsecond)),
		"their processes are listed less often; a newer driver lists processes faster",
	)
}
