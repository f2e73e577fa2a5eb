//go:build vm

package vm

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// payload packs directories into the second disk: the guest unpacks it into /opt/lab at each boot. It is a bare tar file,
// which a block device carries as it is.
func payload(t *testing.T, directories map[string]string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "payload.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for target, source := range directories {
		if err := pack(w, target, source); err != nil {
			t.Fatalf("cannot pack %s for the guest: %v", source, err)
		}
	}
	if err := errorsOf(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func pack(w *tar.Writer, target, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name = path.Join(target, filepath.ToSlash(rel))
		if rel == "." {
			h.Mode = 0o755 // The directory of a test is closed to others; its copy in the guest must not be.
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "root", "root"
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}
