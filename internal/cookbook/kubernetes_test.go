package cookbook_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// The manifests of docs/kubernetes.md have no field that Kubernetes does not know, no value of a
// wrong type, and what each object of its kind needs.
func TestTheManifestsAreValid(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubernetes.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllSubmatch(page, -1)
	require.Len(t, blocks, 3)
	for _, block := range blocks {
		pod := podOf(t, block[1])
		require.NotEmpty(t, pod.Containers)
		for _, c := range pod.Containers {
			require.NotEmpty(t, c.Name)
			require.NotEmpty(t, c.Image)
			for _, v := range c.Env {
				require.True(t, (v.Value == "") != (v.ValueFrom == nil), "%s: a value, or a source", v.Name)
			}
		}
	}
}

// podOf returns the pod of a Deployment or a CronJob, which it reads strictly.
func podOf(t *testing.T, manifest []byte) corev1.PodSpec {
	t.Helper()
	var kind struct{ APIVersion, Kind string }
	require.NoError(t, yaml.Unmarshal(manifest, &kind))
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		var d appsv1.Deployment
		require.NoError(t, yaml.UnmarshalStrict(manifest, &d), "%s", manifest)
		require.NotEmpty(t, d.Name)
		require.NotEmpty(t, d.Spec.Selector.MatchLabels)
		require.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
		return d.Spec.Template.Spec
	case "batch/v1 CronJob":
		var c batchv1.CronJob
		require.NoError(t, yaml.UnmarshalStrict(manifest, &c), "%s", manifest)
		require.NotEmpty(t, c.Name)
		require.NotEmpty(t, c.Spec.Schedule)
		_, err := time.LoadLocation(*c.Spec.TimeZone)
		require.NoError(t, err)
		pod := c.Spec.JobTemplate.Spec.Template.Spec
		require.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy) // or OnFailure, but not Always
		return pod
	}
	require.Fail(t, "another kind of object", "%v", kind)
	return corev1.PodSpec{}
}

// A deployment replaces replicas by the rule of Kubernetes for a rolling update.
type deployment struct {
	replicas, maxSurge, maxUnavailable int
	ready                              func(*replica) bool
	start                              func() *replica
	old, updated                       []*replica
}

// step starts and stops what the rule allows at this moment.
func (d *deployment) step(t *testing.T) {
	for len(d.updated) < d.replicas && len(d.old)+len(d.updated) < d.replicas+d.maxSurge {
		d.updated = append(d.updated, d.start())
	}
	readyOnes := func(replicas []*replica) (n int) {
		for _, r := range replicas {
			if d.ready(r) {
				n++
			}
		}
		return n
	}
	least, readyUpdated := d.replicas-d.maxUnavailable, readyOnes(d.updated)
	unready := len(d.old) + readyUpdated - least // that may go
	ready := readyOnes(d.old) + readyUpdated - least
	d.old = slices.DeleteFunc(d.old, func(r *replica) bool {
		if d.ready(r) || unready <= 0 {
			return false
		}
		unready--
		r.stops(t)
		return true
	})
	d.old = slices.DeleteFunc(d.old, func(r *replica) bool {
		if ready <= 0 || unready <= 0 {
			return false
		}
		ready--
		unready--
		r.stops(t)
		return true
	})
}

// rolls says whether a rolling update comes to its end within an hour.
func rolls(t *testing.T, d deployment) (ends bool) {
	etcd := etcdlocktest.New(t)
	leads := make(chan *candidate, 1000)
	d.start = func() *replica { return newReplicaOf(t, etcd.Client(), "leader/orders", leads) }
	for range d.replicas {
		d.old = append(d.old, d.start())
	}
	for range 60 {
		time.Sleep(time.Minute)
		d.step(t)
	}
	ends = len(d.old) == 0
	for _, r := range slices.Concat(d.old, d.updated) {
		r.end()
		<-r.over
	}
	return ends
}

// If only the leader is ready, a rolling update ends only where Kubernetes may stop all replicas at
// once. If each replica is that can lead, it always ends.
func TestAProbeForTheLeaderStopsARollingUpdate(t *testing.T) {
	for replicas := 1; replicas <= 3; replicas++ {
		for unavailable := range replicas + 1 {
			t.Run(fmt.Sprintf("%d of %d", unavailable, replicas), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					leader := func(r *replica) bool { return r.mu.Status().Held }
					d := deployment{replicas: replicas, maxSurge: 1, maxUnavailable: unavailable}
					d.ready = leader
					require.Equal(t, unavailable == replicas, rolls(t, d))
					d.ready = (*replica).isReady
					require.True(t, rolls(t, d))
				})
			})
		}
	}
}
