package claims

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// cdiKind is the CDI kind of the devices of claims. Those of grants are gpushared's.
const cdiKind = publish.Driver + "/claim"

func deviceName(claim types.UID) string { return "claim-" + string(claim) }

// DeviceID is how a container runtime names the devices of a claim.
func DeviceID(claim types.UID) string { return cdiKind + "=" + deviceName(claim) }

// Files are the CDI files of claims in a directory.
type Files struct{ Dir string }

// Path is the file of a claim.
func (f Files) Path(claim types.UID) string {
	return filepath.Join(f.Dir, api.ClaimFilePrefix+string(claim)+".json")
}

// unfinished is the name of the file of a claim until it is complete: no runtime reads it. A kill may leave it.
func (Files) unfinished(claim types.UID) string {
	return "." + api.ClaimFilePrefix + string(claim) + ".new"
}

// Write makes the document of a lease the file of a claim. Only root may read it, as those of gpushared.
func (f Files) Write(claim types.UID, document json.RawMessage) error {
	var s specs.Spec
	if err := json.Unmarshal(document, &s); err != nil {
		return fmt.Errorf("cannot read the devices of its lease: %w", err)
	}
	if len(s.Devices) != 1 {
		return fmt.Errorf("cannot read the devices of its lease: there are %d, not 1", len(s.Devices))
	}
	s.Kind, s.Devices[0].Name = cdiKind, deviceName(claim)
	version, err := specs.MinimumRequiredVersion(&s)
	if err != nil {
		return fmt.Errorf("cannot make its CDI file: %w", err)
	}
	s.Version = version
	b, err := json.MarshalIndent(&s, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot make its CDI file: %w", err)
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("cannot write its CDI file: %w", err)
	}
	o := durable.Options{
		Mode:     0o600,
		Volatile: true,
		Temp:     f.unfinished(claim),
		Step:     func(name string) { faultpoint.Hit("kubelet.file." + name) },
	}
	if err := durable.Replace(f.Path(claim), append(b, '\n'), o); err != nil {
		return fmt.Errorf("cannot write its CDI file: %w", err)
	}
	return nil
}

// Remove removes the file of a claim.
func (f Files) Remove(claim types.UID) error {
	for _, name := range []string{f.Path(claim), filepath.Join(f.Dir, f.unfinished(claim))} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove its CDI file: %w", err)
		}
		faultpoint.Hit("kubelet.file.removed")
	}
	return nil
}
