package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// A machine says where and when a run was made.
type machine struct {
	processor string
	cores     int
	memory    int // GiB
	kernel    string
	golang    string
	date      time.Time
	load      string // by others, when the run began
}

func thisMachine() machine {
	return machine{
		processor: processor(),
		cores:     runtime.NumCPU(),
		memory:    memory(),
		kernel:    kernel(),
		golang:    runtime.Version(),
		date:      time.Now(),
		load:      load(),
	}
}

func (m machine) String() string {
	s := fmt.Sprintf("%s, %d cores, %d GiB, %s, %s, %s",
		m.processor, m.cores, m.memory, m.kernel, m.golang, m.date.Format(time.DateOnly))
	if m.load != "" {
		s += ", load average before the run " + m.load
	}
	return s
}

// syncTime returns the median time that it takes to write a little and have it on the disk.
// A commit waits for that.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	took := make([]time.Duration, 50)
	for i := range took {
		began := time.Now()
		if _, err := f.Write(make([]byte, 512)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	return median(took), nil
}
