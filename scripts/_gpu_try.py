import sys,time,json,os; sys.path.insert(0,'.')
t00=time.time()
import numpy as np, torch
from tests.configs import model, recipe
from simulator.deployment import Deployment
from simulator.hardware import Interconnect
from simulator.step.build import build_step
from simulator.step.memory import allocate
from simulator.step.launch import bind_triton
from simulator.step.program import group_ops
from simulator.comm.modelled import ModelledCollectives
from simulator.replay import cuda_graph as cg
from simulator.replay.base import no_progress
from functools import partial
from kernels.delay import delay
dev=torch.device('cuda'); res={}
def log(*a): print(round(time.time()-t00,1),*a,flush=True)
log('imports')
for pdl in (True,False):
    step=build_step(model('glm5'),recipe('nvidia_glm5'),Deployment(context=4096))
    mem=allocate(step,dev,seed=0); torch.cuda.synchronize(); log('allocated',torch.cuda.memory_allocated()/2**30)
    x,o=(torch.zeros(6144,dtype=torch.bfloat16,device=dev) for _ in range(2))
    lus=cg.chain_us(partial(delay,x=x,out=o,wait_ns=5000,pdl=pdl),dev)-5; log('delay launch us',lus)
    col=ModelledCollectives(wire=Interconnect(latency_us=3.6,bandwidth_gbps=110),launch_us=lus,pdl=pdl)
    L=bind_triton(step,mem,col,pdl=pdl)
    for l in L: l()
    torch.cuda.synchronize(); log('warmed')
    log('sampled',mem.buffers['sampled'],'hidden std',mem.buffers['hidden'].float().std().item(),'nan',torch.isnan(mem.buffers['logits']).any().item())
    cap=cg.capture(step.ops,L,dev); log('captured',len(cap.nodes),len(cap.edges),sum(e.kind for e in cap.edges))
    r=cg.CudaGraphReplayer(captured=cap,num_ops=len(L),device=dev,resources=mem)
    full=frozenset(range(len(L)))
    groups=group_ops(step.ops,[op.name for op in step.ops])
    comps=group_ops(step.ops,[op.component for op in step.ops])
    subs=[full,frozenset()]+[g.ops for g in groups]+[g.ops for g in comps]+[full-g.ops for g in comps]
    t=time.time(); s=r.measure(subs,enough=lambda z:len(z)>=12,advance=no_progress); log('measured',len(subs),'subsets in',time.time()-t)
    m=np.median(s,axis=0)
    log('FULL',m[0],'empty',m[1],'iqr%',100*np.subtract(*np.percentile(s[:,0],[75,25]))/m[0])
    cost={g.name:(sum(step.ops[i].cost.total_bytes for i in g.ops),len(g.ops)) for g in groups}
    for g,v in sorted(zip(groups,m[2:]),key=lambda z:-z[1]): 
        b,n=cost[g.name]; log(f'  {g.name:20s} n={n:4d} alone {v-m[1]:9.1f}us  per {(v-m[1])/n:7.2f}us  {b/n/1e6:8.3f}MB  {b/(v-m[1])/1e6:6.2f} TB/s')
    k=2+len(groups)
    for i,g in enumerate(comps): log(f'  {g.name:12s} alone {m[k+i]-m[1]:9.1f} LOO {m[0]-m[k+len(comps)+i]:9.1f}')
    res[str(pdl)]={'full':m[0],'empty':m[1],'ops':{g.name:v for g,v in zip(groups,m[2:])}}
    t=time.time()
    import random
    random.seed(0)
    n=0
    for mask in random.sample(range(512),40):
        kept=frozenset().union(*(g.ops for b,g in enumerate(comps) if mask>>b&1)); r.executables[kept]=cg.instantiate_subset(cap,kept); n+=1
    log('instantiate each',(time.time()-t)/n, 'free',torch.cuda.mem_get_info()[0]/2**30)
    r.close(); del mem,L,r,cap; torch.cuda.empty_cache()
json.dump(res,open(os.environ.get('OUT','.')+'/try.json','w'))
