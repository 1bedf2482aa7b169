import{a,b}from"./chunk-OZVR3Y23.js";import"./chunk-PKMJ5RWB.js";import"./chunk-INPMY4FL.js";import"./chunk-WZIZIJ7E.js";export{a as firstRows,b as rowsOfTable};
