// A subject of the benchmarks: client-go's dynamic informer, with the same questions and answers as subjects/probe.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	_ "unsafe" // for nanotime

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

type spec struct {
	Kubeconfig    string   `json:"kubeconfig"`
	Contexts      []string `json:"contexts"`
	Resource      string   `json:"resource"`
	Resources     []string `json:"resources"`
	EachNamespace []string `json:"each_namespace"`
	Indexes       bool     `json:"indexes"`
	Queue         bool     `json:"queue"`
	Marks         bool     `json:"marks"`
	Drop          bool     `json:"drop"`
	Burn          int      `json:"burn"`
}

// A probe counts what is told and remembers when.
type probe struct {
	mu       sync.Mutex
	changed  *sync.Cond
	counts   map[string]int
	marks    map[string]float64
	delays   []float64
	connects atomic.Int64
	began    float64
	cpu      float64
	synced   float64
}

//go:linkname nanotime runtime.nanotime
func nanotime() int64

// monotonic is CLOCK_MONOTONIC, which all processes share.
func monotonic() float64 { return float64(nanotime()) / 1e9 }

func cpuSeconds() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func (p *probe) seen(kind string, annotations map[string]string, name string) {
	now := monotonic()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
	if kind == "deleted" && name != "" {
		if _, known := p.marks["deleted "+name]; !known {
			p.marks["deleted "+name] = now
		}
	}
	if mark, found := annotations["bench/mark"]; found {
		if _, known := p.marks[mark]; !known {
			p.marks[mark] = now
		}
	}
	if sent, found := annotations["bench/sent"]; found {
		at, _ := strconv.ParseFloat(sent, 64)
		p.delays = append(p.delays, now-at)
	}
	p.changed.Broadcast()
}

func status(name string) int {
	data, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(data), "\n") {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			value, _ := strconv.Atoi(strings.Fields(rest)[0])
			return value
		}
	}
	return 0
}

func sockets() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	count := 0
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}

func (p *probe) snapshot() map[string]any {
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	longest := time.Duration(0)
	for _, pause := range stats.Pause {
		longest = max(longest, pause)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	counts, marks := map[string]int{}, map[string]float64{}
	for key, value := range p.counts {
		counts[key] = value
	}
	for key, value := range p.marks {
		marks[key] = value
	}
	delays := map[string]float64{}
	sorted := append([]float64(nil), p.delays...)
	sort.Float64s(sorted)
	if len(sorted) > 0 {
		for _, share := range []int{50, 90, 99} {
			delays[fmt.Sprintf("p%d", share)] = sorted[len(sorted)*share/100]
		}
	}
	return map[string]any{
		"counts": counts, "marks": marks, "ended": "", "now": monotonic(), "wall": monotonic() - p.began,
		"cpu": cpuSeconds() - p.cpu, "rss": status("VmRSS") * 1024, "peak": status("VmHWM") * 1024,
		"threads": status("Threads"), "goroutines": runtime.NumGoroutine(), "sockets": sockets(),
		"connects": p.connects.Load(), "delays": delays, "synced": p.synced,
		"gc": map[string]any{"pauses": stats.NumGC, "longest": longest.Seconds(), "total": stats.PauseTotal.Seconds()},
	}
}

// until waits until a count or a mark was reached.
func (p *probe) until(question map[string]any) map[string]any {
	deadline := time.Now().Add(time.Duration(question["timeout"].(float64) * float64(time.Second)))
	wake := time.AfterFunc(time.Until(deadline), p.changed.Broadcast)
	defer wake.Stop()
	reached := func() bool {
		if mark, found := question["mark"].(string); found {
			_, known := p.marks[mark]
			return known
		}
		return p.counts[question["count"].(string)] >= int(question["is"].(float64))
	}
	p.mu.Lock()
	for !reached() && time.Now().Before(deadline) {
		p.changed.Wait()
	}
	is := reached()
	p.mu.Unlock()
	answer := p.snapshot()
	answer["reached"] = is
	return answer
}

func resourceOf(text string) schema.GroupVersionResource {
	plural, group, _ := strings.Cut(text, ".")
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A subject is the informers that the harness wants, not yet started.
type subject struct {
	probe     *probe
	wanted    spec
	informers []cache.SharedIndexInformer
	stop      chan struct{}
}

func (s *subject) follow(config *rest.Config, namespace string, resources []string) {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		s.probe.connects.Add(1)
		return dialer.DialContext(ctx, network, address)
	}
	client, err := dynamic.NewForConfig(config)
	check(err)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)
	for _, resource := range resources {
		informer := factory.ForResource(resourceOf(resource)).Informer()
		if s.wanted.Drop {
			check(informer.SetTransform(func(obj any) (any, error) {
				found, is := obj.(*unstructured.Unstructured)
				if !is {
					return obj, nil
				}
				return &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": found.GetAPIVersion(), "kind": found.GetKind(), "metadata": found.Object["metadata"],
				}}, nil
			}))
		}
		if s.wanted.Indexes {
			check(informer.AddIndexers(cache.Indexers{
				"app": func(obj any) ([]string, error) {
					return []string{obj.(*unstructured.Unstructured).GetLabels()["app"]}, nil
				},
				"owner": func(obj any) ([]string, error) {
					var uids []string
					for _, owner := range obj.(*unstructured.Unstructured).GetOwnerReferences() {
						uids = append(uids, string(owner.UID))
					}
					return uids, nil
				},
			}))
		}
		s.handle(informer)
		s.informers = append(s.informers, informer)
	}
}

func (s *subject) handle(informer cache.SharedIndexInformer) {
	var queue workqueue.TypedRateLimitingInterface[string]
	if s.wanted.Queue {
		queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
		go func() {
			for key, shut := queue.Get(); !shut; key, shut = queue.Get() {
				queue.Forget(key)
				queue.Done(key)
			}
		}()
	}
	tell := func(kind string, obj any) {
		var annotations map[string]string
		name := ""
		if s.wanted.Marks {
			if found, is := obj.(*unstructured.Unstructured); is {
				annotations, name = found.GetAnnotations(), found.GetName()
			} else if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
				_, name, _ = cache.SplitMetaNamespaceKey(gone.Key)
			}
		}
		s.probe.seen(kind, annotations, name)
		if queue != nil {
			key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			queue.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell("added", obj) },
		UpdateFunc: func(_, obj any) { tell("modified", obj) },
		DeleteFunc: func(obj any) { tell("deleted", obj) },
	})
	check(err)
	check(informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, _ error) {
		s.probe.seen("error", nil, "")
	}))
}

func (s *subject) start() {
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // the peak counts from here
	s.probe.began, s.probe.cpu = monotonic(), cpuSeconds()
	var synced []cache.InformerSynced
	for _, informer := range s.informers {
		go informer.Run(s.stop)
		synced = append(synced, informer.HasSynced)
	}
	go func() {
		if cache.WaitForCacheSync(s.stop, synced...) {
			s.probe.mu.Lock()
			s.probe.synced = monotonic() - s.probe.began
			s.probe.mu.Unlock()
		}
	}()
}

func main() {
	klog.SetOutput(os.Stderr)
	p := &probe{counts: map[string]int{"added": 0, "modified": 0, "deleted": 0, "error": 0}, marks: map[string]float64{}}
	p.changed = sync.NewCond(&p.mu)
	p.began, p.cpu = monotonic(), cpuSeconds()
	s := &subject{probe: p, stop: make(chan struct{})}
	check(json.Unmarshal([]byte(os.Args[1]), &s.wanted))

	resources := s.wanted.Resources
	if len(resources) == 0 {
		resources = []string{s.wanted.Resource}
	}
	contexts := s.wanted.Contexts
	if len(contexts) == 0 {
		contexts = []string{""}
	}
	namespaces := s.wanted.EachNamespace
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, context := range contexts {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.wanted.Kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: context},
		).ClientConfig()
		check(err)
		for _, namespace := range namespaces {
			s.follow(config, namespace, resources)
		}
	}

	say := func(answer map[string]any) {
		line, _ := json.Marshal(answer)
		fmt.Println(string(line))
	}
	say(p.snapshot())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var question map[string]any
		check(json.Unmarshal(lines.Bytes(), &question))
		switch question["do"] {
		case "start":
			s.start()
			for range s.wanted.Burn {
				go func() {
					for sum := 0; ; sum++ {
						_ = sum
					}
				}()
			}
			say(map[string]any{})
		case "until":
			say(p.until(question))
		case "snap":
			say(p.snapshot())
		case "has":
			_, found, _ := s.informers[0].GetStore().GetByKey(fmt.Sprintf("%v/%v", question["namespace"], question["name"]))
			say(map[string]any{"has": found})
		case "forget":
			p.mu.Lock()
			p.delays = nil
			p.mu.Unlock()
			say(map[string]any{})
		case "stop":
			began := monotonic()
			close(s.stop)
			say(map[string]any{"seconds": monotonic() - began})
			return
		}
	}
}
