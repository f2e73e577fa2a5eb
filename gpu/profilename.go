package gpu

import "fmt"

// GIName is the name of the GPU instance profile with this id on this device.
func (ps *Profiles) GIName(id uint32) string {
	if ps != nil {
		for i := range ps.GI {
			if ps.GI[i].ID == id {
				return ps.GI[i].Name
			}
		}
	}
	return fmt.Sprintf("profile %d", id)
}
