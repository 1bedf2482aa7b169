import{a}from"../chunk-TBFPZUJN.js";import"../chunk-PKMJ5RWB.js";import"../chunk-INPMY4FL.js";import"../chunk-WZIZIJ7E.js";export{a as FilesSource};
