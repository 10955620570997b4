"""The default of every parameter of every method; what a paper or its code names is theirs.

A line of `ROWS` has the family, the papers whose named tests hold it, and the method with all of its parameters; a line
of `CONSTANTS` has the papers, a module, and numbers of its rule that are no parameters.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from pardec.samplers import registry

ROWS = tuple(
    tuple(map(str.strip, line.split("|")))
    for line in """
ar | 2407.12021 | aded:k=6,nodes=32,rollouts=32,explore=0.5,top=4,decay=1.0,corpus=none,update=true,keep=false
ar | 2205.10350 | aggressive:k=32,max_ngram=8,source=none,agree=1,reference=false
ar | | auto:model=none,copy=lookup,token=none,measured=true
ar | | beam:beams=10,nodes=60,raw=false
ar | 2302.07863 | bild:rollback=2.0
ar | 2503.12491 | cake:budget=512,window=32,gamma=200.0,tau1=1.0,tau2=1.0,refresh=16,reference=false
ar | 2405.19715 | calibrated:h=0.7,buckets=32,prior=2.0,decay=0.99,cost=none
ar | 2408.07092 | channels:heavy=256,sink=4,window=64,pairs=none,calibration=64,file=none
ar | 2502.08923 | copyspec:k=10,suffix=1
ar | 2504.05598 | del:k=8,exits=none,decay=0.95,every=1
ar | | dflash:name=none,k=15,quantize=none,taps=none
ar | 2512.20573 | diffusion:name=none,k=60,step=10,low=0.45,tau=0.05,small=8,block=32
ar | 2410.11744 | dyspec:nodes=64,children=8
ar | | eagle:name=none,k=5,quantize=none,taps=none,prompt_ids=false
ar | 2404.18911 | earlyexit:layers=2,k=5
ar | 2502.20330 | enrich:eta=10.0,alpha=0.1
ar | | falcon:name=none,k=4,quantize=none,block=none
ar | 2302.07863 | fallback:below=0.6
ar | 2511.22972 | fly:entropy=0.3,window=6,top=3
ar | 2403.05527 | gear:bits=2,rank=4,sparsity=0.02,chunk=20,residual=1,aligned=true
ar | 2406.14066 | goodput:c=0.1,token=0.005,context=0.0,prior=0.7,decay=0.95,measured=false
ar | | gsd:group=14,prob=0.15,dist=0.5,mode=vectorised
ar | | heuristic:first=5,more=2,less=1
ar | | hydra:name=none,k=5,quantize=none
ar | 2604.11035 | idlm:k=3,mask=none,name=none,adapter=none
ar | | int8:residual=32,chunk=32,aligned=true
ar | | jacobi:window=16,policy=sliding,init=prompt,exit_iterations=none,exit_tokens=0
ar | 2501.19309 2504.20039 | judge:head=none,thr=none
ar | 2404.18911 | kangaroo:name=none,k=6,quantize=none,layers=none
ar | 2402.02750 | kivi:bits=4,group=32,residual=128,aligned=true
ar | 2410.03355 | lantern:k=1000,delta=0.1,ratio=none,mode=principled
ar | 2404.06954 2410.06916 | layerskip:ratio=0.45,skip=uniform,k=5,context=32,disk=false
ar | 2310.08461 | lenience:mix=0.1,eps=0.5,f=linear,mode=principled,tv=none
ar | 2603.25702 2607.05722 | linearspec:k=31,mask=none,shift=none,adapter=none
ar | 2308.16137 | lminfinite:sink=10,window=2048,reference=false
ar | 2502.17421 | longspec:name=none,k=5,quantize=none
ar | | lookahead:window=7,ngram=5,guesses=7,init=prompt,pool_from_prompt=true,reference=false
ar | | lookup:k=10,max_ngram=3,prefer=last,context=line
ar | | match:noise=fresh
ar | 2401.10774 | medusa:name=none,k=5,quantize=none
ar | 2412.18934 2502.02493 2506.22694 2507.02659 | model:name=none,k=5,vocab=none,map=ids,keep=false,parallel=none,\
device=none
ar | 2212.02175 | momentum:alpha=0.2,k=5,resistance=1-3-4-5-6
ar | 2412.19437 | mtp:name=none,k=3,quantize=none
ar | 2505.22913 | mustafar:sparsity=0.5,residual=32,chunk=32,aligned=true
ar | 2401.10774 | paths:tree=mc_sim_7b_63,top=false
ar | 2408.11850 | pearl:name=none,k=5,vocab=none,map=ids,keep=false,parallel=none,device=none
ar | 2606.05703 | pjd:lag=none,window=32,wait=false,joint=false,tree=none
ar | 2405.18628 | prompts:name=none,k=3,quantize=none,carry=none
ar | 2502.20330 | rapid:name=none,k=5,chunk=64,chunks=8,query=64,begin=4
ar | 2503.03434 | rasd:model=none,store=none,span=10,branches=8,suffix=8,least=0.01,nodes=32
ar | 2408.08696 | recycling:k=8,tree=8-21-25-15-8-3,prefill=true,keep=false
ar | 2505.18629 | reflective:alpha=0.3,probe=none,mix=logits
ar | 2404.11912 | retrieval:budget=512,chunk=8,refresh=8
ar | 2501.16383 | rotatekv:bits=2,group=64,heads=4,clip=none,sinks=1,residual=32,chunk=32,aligned=true
ar | 2402.14160 | rrs:replacement=false
ar | | seeded_jacobi:window=16,policy=sliding,init=prompt,exit_iterations=none,exit_tokens=0
ar | 2410.01699 2512.07503 2603.18599 | sjd:window=none,refresh=coupled,init=none,uniform=false,reuse=none,tree=none
ar | 2407.01955 | sorted:name=none,exits=none,tau=0.7,k=5
ar | 2404.11912 | sparsekv:read=retrieval,k=4
ar | 2309.17453 | streaming:sink=16,window=496
ar | 2411.04975 | suffix:k=32,depth=64,factor=1.0,offset=0.0,least=0.1,tree=false,keep=false,stored=1000
ar | 2405.18400 | superposed:k=3,tokens=none,temperature=0.06,alpha=0.54,weights=0.01-0.04-0.15-0.18-0.12,\
penalty=200.0,corpus=none
ar | 2402.14160 | template:widths=1-1-3-1-1-1-1-1
ar | | topk:k=3,tolerance=0.7
ar | | transfer:name=none,k=3,quantize=none,carry=none
ar | 2404.11912 | triforce:name=none,read=retrieval,k=2,gamma=6
ar | 2401.10774 | typical:epsilon=0.09,delta=0.3,reference=false
ar | 2404.18911 | unsure:tau=0.4
ar | | zipar:window=none
continuous | | auto:draft=none,k=8,steps=64,guidance=linear,last=none,head=none
continuous | 2411.11925 | cspd:draft=none,k=8,mode=reference,steps=64,guidance=linear,last=none,head=none,\
prefill=0.15,tau=42.0,derived=false,reference=false,slack=1.0
continuous | https://cvpr.thecvf.com/virtual/2026/poster/38500 | fasthybrid:k=7,tau=0.8,short=10,steps=64,\
guidance=linear,last=map,head=none,order=random
continuous | 2503.12450 2505.20297 2507.01957 2510.17171 | mar:steps=64,guidance=linear,last=map,head=none,\
head_to=none,order=random,uncond_every=1,decoder_every=1,head_every=1,warmup=5,margin=15,layer=3
continuous | | seeded_jacobi:window=8,tol=0.001,steps=64,guidance=linear,last=map,head=none,head_to=none
continuous | | sequential:guidance=linear,last=map,head=none,head_to=none
masked | 2510.18165 | above_mean:least=2
masked | | adablock:tau=0.3,delimiters=none,scope=0.25
masked | 2512.10858 2606.19005 | adaptive:steps=128,tokens=1
masked | 2511.21759 | adaptive_length:tau=0.9,beyond=128
masked | 2503.04482 2606.19005 | ancestral:steps=128,schedule=linear,low=-9.0,high=9.0
masked | 2505.24857 | anneal:high=0.8,low=0.4,steps=48
masked | 2607.05722 | bound:tau=0.9,least=0.45,f=2.0
masked | | carry:tau=0.9,steps=none
masked | | causal:alongside=none
masked | | confidence:of=raw
masked | 2505.16990 | confident:tau=0.95,steps=none,eps=0.001,order=score,reference=false
masked | | contiguous:tau=0.5
masked | 2605.10980 | counterfactual:tau=0.7,draft=0.2
masked | 2510.06133 | credit:alpha=0.7,beta=0.8,gamma=0.2,free=false
masked | 2607.05722 | cumulative:tau=0.9
masked | 2509.23094 | d2cache:k=32,rollout=0.1,sigma=10.0,fill=4,refresh=0
masked | | dapd:first=0.01,last=0.05,switch=0.5,tau=0.9,share=0.3
masked | 2602.06953 | dawn:low=none,induce=none,high=0.9,edge=none,sink=none,layers=4
masked | 2601.02076 | dcd:masks=none,most=none
masked | | denoise:gamma=0.1,confidence=0.005,steps=48
masked | 2509.23094 | density:sigma=10.0
masked | 2505.15781 | dkv:refresh=8,full=none,settle=self,prompt=refresh,reference=false
masked | 2505.15781 | dkv_greedy:refresh=2,window=4
masked | 2508.14148 | dpad:k=4.0,scale=2.0,window=256
masked | | dsb:most=none
masked | | dual:refresh=0,reference=false
masked | 2506.19037 | dus:base=2,skip=0.0
masked | | edit:tau=0.9,post=16,steps=none,of=raw,sure=none
masked | | entropy:of=raw
masked | | entropy_bound:gamma=0.1,whole=false
masked | | entropy_threshold:tau=0.45,floor=none,steps=16
masked | | eos:reference=false
masked | 2603.10088 | es:share1=0.5,share2=0.25,depth1=0.125,depth2=0.25,alpha=0.5,block_refresh=4,refresh=64
masked | | factor:f=1.0,reference=false
masked | | fixed:steps=none,order=confidence,reference=false
masked | 2509.18085 | freedave:drafts=4,subset=false,width=1,graph=none
masked | 2508.00819 | grow:start=64,step=8,spare=16,enough=0.5,sure=0.9,unsure=0.1
masked | | hierarchy:high=0.9,low=0.4,reference=false
masked | | klass:tau=0.9,kl=0.01,history=2,steps=none
masked | 2603.05454 2607.20467 | leap:tau=0.7,window=none,border=tau,back=4,delimiters=none
masked | | learned:filter=none,tau=none,force=false
masked | | levenshtein:tau=0.0,post=16,delete=none,split=none
masked | 2510.07081 | localleap:relaxed=0.75,radius=4
masked | | lopa:branches=2
masked | | margin:of=raw
masked | | maskgit:steps=none,noise=4.5,anneal=linear
masked | 2510.06308 | mlcache:reuse=0.9,refresh=5,warmup=none
masked | | multiblock:add=0.1,blocks=4
masked | | oracle:of=sequential
masked | | origin:steps=none,eps=0.001
masked | 2508.13021 | pc:decay=0.25,cap=10.0,corpus=none
masked | | prefix:refresh=0,reference=false,before=0
masked | 2508.19982 | prophet:region=none,start=none,length=5,early=7.5,mid=5.0,late=2.5,progress=none,decided=false,\
gap=none
masked | 2607.20467 | provisional:tau=0.98,alternate=false
masked | | quota:tau=0.95,steps=none,least=1
masked | | remdm:at=0.875,rounds=4,tokens=1
masked | | renoise:gamma=0.1,confidence=0.005,steps=48
masked | 2510.18165 | saber:least=2,reference=false
masked | | slowfast:tau=0.3,steps=6,all=false
masked | 2510.08666 | smoothing:weight=0.15,growth=0.02,most=0.3
masked | 2602.02544 | spa:ratio=0.25,refresh=50,response=7,rank=128,peak=none,first=none,last=none
masked | 2506.19037 | spacing:gap=none,base=2
masked | 2509.26328 | subblock:size=8,reuse=true,first_before=true
masked | 2601.17917 | suffix:window=96,tail=1
masked | 2601.17917 | threshold:tau=0.9,fall=0.0,relax=0.0
masked | | timesteps:steps=none,eps=0.001,alg_temp=none,reference=false
masked | 2510.08666 | vicinity:refresh=0,reference=false,before=16,after=16,warmup=4
masked | | wedlm:tau=0.4,distance=0.02
masked | | window:slide=true
masked | | wino:draft=0.6,verify=0.9
scales | 2411.17787 | code:refiner=none,steps=none,temperatures=none,top_ks=none,cfgs=none,order=filters
scales | | fastvar:keep=0.5,scales=2,layer=0,temperatures=none,top_ks=none,cfgs=none,order=filters
scales | 2411.17787 | sequential:temperatures=none,top_ks=none,cfgs=none,order=filters
""".strip().splitlines()
)

CONSTANTS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("2404.18911", "models.draft_modules.kangaroo", {"_EXIT": 2}),
    ("2410.06916", "samplers.speculative.draft.layerskip", {"_ENOUGH": 0.95, "_PATIENCE": 300, "_TRIES": 1000}),
    ("2410.01699 2512.07503 2603.18599", "samplers.speculative.draft.sjd", {"_TEXT": 16, "_IMAGE": 32}),
    ("2411.11925", "samplers.continuous.methods.cspd", {"TRIES": 100}),
    ("2501.16383", "samplers.speculative.cache.rotatekv", {"_CLIP": 0.8}),
    ("2502.17421", "models.draft_modules.longspec", {"_WINDOW": 512}),
    ("2502.20330", "samplers.speculative.draft.rapid", {"_K1": 1.5, "_B": 0.75}),
    ("2503.04482", "samplers.masked.ops.uniform_noise", {"_EDGE": 1e-4, "_COSINE_EDGE": 1e-3, "_LEAST": 1e-6}),
    (
        "2503.12450",
        "samplers.continuous.methods.mar",
        {"_SHARES": ((20, 1.0), (21, 0.6), (25, 0.5), (30, 0.4), (35, 0.15), (40, 0.12), (64, 0.05))},
    ),
    ("2508.00819", "samplers.masked.finish.grow", {"_TAIL": 32}),
    ("2508.19982", "samplers.masked.finish.prophet", {"_BOUNDS": (0.33, 0.67)}),
    ("2510.06308", "samplers.masked.cache.mlcache", {"_WARMUP": 0.3}),
    ("2510.18165", "samplers.masked.revise.saber", {"_EVERY": 8}),
    (
        "2602.02544",
        "samplers.masked.cache.spa",
        {"_LEAST": 1 / 32, "_PUBLISHED": ((0.75, 0.12, 0.52), (0.5, 1 / 6, 5 / 6))},
    ),
    (
        "2602.06953",
        "samplers.masked.select.dawn",
        {
            "_PUBLISHED": (
                {"sink": 0.01, "edge": 0.07, "induce": 0.7, "low": 0.75},
                {"sink": 0.03, "edge": 0.1, "induce": 0.75, "low": 0.8},
            )
        },
    ),
    ("", "samplers.masked.select.klass", {"_LEAST": 1e-12}),
    ("", "samplers.masked.select.maskgit", {"_LEAST": 1e-20}),
    ("", "samplers.masked.revise.wino", {"_FIRST": 30, "_SHARE": 0.7, "_LEAST": 5, "_MOST": 20}),
    ("", "samplers.speculative.accept.gsd", {"_COMPARED": 10000}),
)


@cache
def check(paper: str, method: str) -> None:
    """Raises AssertionError if a default or constant of `method`, or of those `paper` is shown with, is another one."""
    for family, papers, full in ROWS:
        name = full.partition(":")[0]
        if name == method or paper in papers.split():
            own = registry.find(name, family).parameters
            here = f"{name}:" + ",".join(f"{each['name']}={each['default']}" for each in own)
            assert here == full, f"the defaults are {here}, the published ones {full}"
    for papers, module, values in CONSTANTS:
        if module.rpartition(".")[2] == method or paper in papers.split():
            for name, value in values.items():
                here = getattr(import_module(f"pardec.{module}"), name)
                assert here == value, f"{module}.{name} is {here}, the published one {value}"
