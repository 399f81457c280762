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
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	Memory    int    `json:"memory"` // GiB
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Date      string `json:"date"`
	Load      string `json:"load,omitempty"` // by others, when the run began
}

func thisMachine() machine {
	return machine{
		Processor: processor(),
		Cores:     runtime.NumCPU(),
		Memory:    memory(),
		Kernel:    kernel(),
		Go:        runtime.Version(),
		Date:      time.Now().Format(time.DateOnly),
		Load:      load(),
	}
}

func (m machine) String() string {
	s := fmt.Sprintf("%s, %d cores, %d GiB, %s, %s, %s", m.Processor, m.Cores, m.Memory, m.Kernel,
		m.Go, m.Date)
	if m.Load != "" {
		s += ", load average before the run " + m.Load
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
