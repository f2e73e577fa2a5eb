package step

import "errors"

// ErrAfterBoot is what the error of a step contains whose effect the hardware keeps until the next boot of the host. The step and
// those of its GPU before it are not undone; the rest is planned again after the boot.
var ErrAfterBoot = errors.New("only a boot of the host can finish it")
